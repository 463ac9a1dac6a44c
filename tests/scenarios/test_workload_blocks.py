"""Workloads as a file writes them: drawn lengths and waits, and loads that ask for too much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from tokenizers import Tokenizer, models

from loadgen.workload import Compaction, Sessions, Tools
from loadgen.workload.lengths import Amount, Choices, Lognormal, Pareto, Uniform
from loadgen.workload.waits import ExponentialTime, LognormalTime, ParetoTime, UniformTime, Wait
from scenarios.forms import first_keys
from scenarios.load import ScenarioError, json_schema, parse, resolved, tables
from scenarios.parts import engine_config
from scenarios.sizes import Model, lengths

AMOUNTS = [
    ("600", 600),
    ("{median: 300, p99: 4000}", Lognormal(300, 4000)),
    ("{median: 300, p99: 4000, max: 9000}", Lognormal(300, 4000, 1, 9000)),
    ("{uniform: [100, 500]}", Uniform((100, 500))),
    ("{pareto: 1.2, min: 50, max: 30000}", Pareto(1.2, 50, 30_000)),
    ('{choices: {"128": 50%, "1024": 0.3, "8192": 20%}}', Choices({"128": 0.5, "1024": 0.3, "8192": 0.2})),
]
WAITS = [
    ("2s", 2.0),
    ("{median: 10s, p99: 50m}", LognormalTime(10.0, 3000.0)),
    ("{mean: 500ms, max: 9s}", ExponentialTime(0.5, 9.0)),
    ("{uniform: [1s, 3s]}", UniformTime((1.0, 3.0))),
    ("{pareto: 1.1, min: 5m, max: 4h}", ParetoTime(1.1, 300.0, 14_400.0)),
]


@pytest.mark.parametrize(("text", "value"), AMOUNTS)
def test_a_length_may_be_a_number_or_say_how_it_is_drawn(good: str, text: str, value: Amount) -> None:
    """Each form reads as its dataclass, and reads back equal when written out."""
    scenario = parse(good, "s.yaml", [f"load.1.workload.input={text}"])
    assert scenario.load[1].workload.input == value  # type: ignore[attr-defined]
    assert parse(resolved(scenario), "s.yaml") == scenario


@pytest.mark.parametrize(("text", "value"), WAITS)
def test_a_think_time_may_be_a_time_or_say_how_it_is_drawn(good: str, text: str, value: Wait) -> None:
    """The same for times, with their units."""
    scenario = parse(good, "s.yaml", [f"load.0.workload.think={text}"])
    assert scenario.load[0].workload.think == value  # type: ignore[attr-defined]
    assert parse(resolved(scenario), "s.yaml") == scenario


def test_blocks_of_a_session_read_back_equal(good: str) -> None:
    """Blocks within blocks, drawn values in them."""
    blocks = "{calls: {uniform: [1, 3]}, result: 40, think: {mean: 1s}, share: 60%}"
    overrides = [
        f"load.0.workload.tools={blocks}",
        "load.0.workload.compaction={at: 900, summary: {uniform: [20, 60]}}",
        "load.0.workload.history=recorded",
    ]
    scenario = parse(good, "s.yaml", overrides)
    workload = scenario.load[0].workload
    assert isinstance(workload, Sessions)
    assert workload.tools == Tools(Uniform((1, 3)), 40, ExponentialTime(1.0), 0.6)
    assert workload.compaction == Compaction(900, Uniform((20, 60)))
    assert parse(resolved(scenario), "s.yaml") == scenario


def errors(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "s.yaml", overrides)
    return caught.value.errors


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("load.1.workload.input={medan: 3, p99: 9}", "(did you mean 'median'?)"),
        ("load.1.workload.input={medan: 3, p99: 9}", "or a whole number"),
        ("load.1.workload.input={median: 3}", "load.1.workload.input.p99: missing key 'p99'"),
        ("load.1.workload.input={median: 300, p99: 30}", "load.1.workload.input: p99 must be at least"),
        ("load.1.workload.input={uniform: [9]}", "uniform takes the smallest and the largest"),
        ("load.1.workload.input=many", "load.1.workload.input: expected a whole number, found 'many'"),
        ("load.1.workload.input=1.5", "load.1.workload.input: expected a whole number, found 1.5"),
        ("load.0.workload.think={mean: 5}", "load.0.workload.think.mean: missing unit (write 5s"),
        ("load.0.workload.think={men: 5s}", "or a time (5s or 250ms), found"),
        ("load.0.workload.think=3", "load.0.workload.think: missing unit (write 3s"),
        ("load.0.workload.tools={calls: 2}", "load.0.workload.tools.result: missing key 'result'"),
        ("load.0.workload.tools={call: 2}", "unknown key 'call' (did you mean 'calls'?)"),
    ],
)
def test_a_wrong_block_is_told_by_its_key(good: str, override: str, words: str) -> None:
    """With the nearest known key, or with all that would do."""
    assert any(words in error for error in errors(good, override)), errors(good, override)


def test_the_schema_and_the_listing_know_how_values_are_drawn() -> None:
    """Editors complete the blocks; `bench list` has a table of each."""
    text = json.dumps(json_schema())
    for name, union in (("amounts", Amount), ("waits", Wait)):
        keys = list(first_keys(get_args(union)))
        assert [entry["name"] for entry in tables()[name]] == keys
        assert all(f'"{key}"' in text for key in keys)
        assert all(len(entry["doc"]) > 20 for entry in tables()[name])
    fixed = next(entry for entry in tables()["workloads"] if entry["name"] == "fixed")
    assert fixed["fields"]["input"] == "whole number, or drawn (see amounts)"
    sessions = next(entry for entry in tables()["workloads"] if entry["name"] == "sessions")
    assert sessions["fields"]["think"] == 'time (5s or 250ms), or drawn (see waits) = "0s"'


# --- what a load can ask for


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("classes.batch.limits={input: 599}", "load.1.workload: limits.input of class 'batch' is 599, this"),
        ("classes.batch.limits={output: 47}", "limits.output of class 'batch' is 47, this can ask for 48"),
        ("classes.batch.limits={total: 647}", "limits.total of class 'batch' is 647, this can ask for 648"),
        (
            "target.engine.max_model_len=647",
            "target.engine.max_model_len is 647, this can ask for 648 tokens",
        ),
        (
            "target.engine.memory.kv_blocks=40",
            "kv_blocks times block_size) is 640, this can ask for 648 tokens",
        ),
        ("classes.chat.limits={total: 615}", "load.0.workload: limits.total of class 'chat' is 615, this"),
    ],
)
def test_a_load_beyond_the_limits_is_refused_with_its_line(good: str, override: str, words: str) -> None:
    """Before anything is sent: the prompt, the answer, or both together; sessions as they grow."""
    found = errors(good, override)
    assert any(words in error for error in found), found
    line = next(k for k, text in enumerate(good.splitlines(), 1) if "type: fixed" in text)
    sessions = next(k for k, text in enumerate(good.splitlines(), 1) if "type: sessions" in text)
    assert {error.split(":")[1] for error in found} <= {str(line), str(sessions)}
    above = override.replace("599", "600").replace("615", "616")
    above = above.replace("647", "648").replace("=40", "=41").replace(": 47", ": 48")
    parse(good, "s.yaml", [above])


def test_the_limit_of_a_url_is_what_the_file_says(good: str) -> None:
    """A foreign model's limit is known where it is given; what is drawn counts at its largest."""
    url = "target={url: http://x, model: m, max_model_len: 648}"
    parse(good, "s.yaml", [url, "faults=[]", "gates=[]"])
    longer = "load.1.workload.input={uniform: [10, 601]}"
    found = errors(good, url, "faults=[]", "gates=[]", longer)
    assert "target.max_model_len is 648, this can ask for 649 tokens" in found[0]
    capped = "load.1.workload.input={median: 100, p99: 900, max: 600}"
    parse(good, "s.yaml", [url, "faults=[]", "gates=[]", capped])


def test_a_clamping_engine_cuts_answers_and_takes_no_longer_prompts(good: str) -> None:
    """With over_length: clamp an answer is as long as there is room; a prompt must still leave some."""
    clamp = "target.engine.admission.over_length=clamp"
    parse(good, "s.yaml", [clamp, "target.engine.max_model_len=610"])
    assert "can ask for 601 tokens" in errors(good, clamp, "target.engine.max_model_len=600")[0]


def test_a_limit_that_is_learnt_from_the_target_is_checked_too(good: str) -> None:
    """What the model takes may be known only when the target has been asked."""
    scenario = parse(good, "s.yaml")
    assert list(lengths(scenario, Model(648))) == []
    ((path, message),) = lengths(scenario, Model(647))
    assert path == ("load", 1, "workload")
    assert message == "the model's limit is 647, this can ask for 648 tokens"


def test_a_tokenizer_that_cannot_make_the_text_is_refused_with_its_line(good: str, tmp_path: Path) -> None:
    """A missing file, and one whose vocabulary cannot make prompts of an exact length."""
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(path))
    for name, words in ((str(path), "an exact length cannot be made"), ("no.json", "cannot be read")):
        target: dict[str, Any] = {"url": "http://x", "model": "m", "tokenizer": name}
        found = errors(good, f"target={json.dumps(target)}", "faults=[]", "gates=[]")
        assert len(found) == 1
        assert "target.tokenizer: " in found[0]
        assert words in found[0]


def test_adapters_are_for_targets_that_serve_them(good: str) -> None:
    """A load names them by shares; the built-in engine has to be given those that it is asked for."""
    adapters = "load.1.adapters={fr: 20%, sql: 0.3}"
    url = "target={url: http://x, model: m}"
    scenario = parse(good, "s.yaml", [url, "faults=[]", "gates=[]", adapters])
    assert scenario.load[1].adapters == {"fr": 0.2, "sql": 0.3}
    assert parse(resolved(scenario), "s.yaml") == scenario
    (missing,) = errors(good, adapters, "target.engine.adapters={sql: ./lora, fx: ./lora}")
    assert "load.1.adapters.fr: target.engine.adapters has no 'fr' (known: sql, fx)" in missing
    engine = "target.engine.adapters={sql: ./lora, fr: ./lora}"
    parsed = parse(good, "s.yaml", [engine, adapters])
    assert engine_config(parsed).adapters == {"sql": "./lora", "fr": "./lora"}
    assert "at most 100%" in errors(good, url, "faults=[]", "gates=[]", "load.1.adapters={a: 80%, b: 80%}")[0]
