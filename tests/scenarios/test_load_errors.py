"""Broken scenarios: every error at once, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.workload import WORKLOADS
from scenarios.load import ScenarioError, load, parse

MANY_WRONG = """\
headrace: 1
target:
  engine:
    workerz: 2
    memory: {kv_blocks: many}
    cache: {ttl: 300}
classes:
  chat: {slo: {ttft_shed: 2s}}
  batch: {}
phases: {window: 40}
cache: hot
load:
  - class: chatt
    arrival: {type: poison, rate: 3/s}
    workload: {type: fixed, input: 600}
  - class: chat
    arrival: {type: poisson, rate: 0/s}
    workload: {input: 5, output: 5}
faults:
  - {id: a, type: cancel, class: chat, share: 10%, when: {decod: 5}}
  - {id: a, type: kill_worker, worker: 0, at: 5s, when: {prefill: 0}}
gates:
  - attainment >= 90%
  - chat.ttft_shed.p90 < 3s
  - chat.ttft_sched.p90 < 3
colour: red
"""

GOLDEN = [
    "4: target.engine.workerz: unknown key 'workerz' (did you mean 'workers'?)",
    "5: target.engine.memory.kv_blocks: expected a whole number, found 'many'",
    "6: target.engine.cache.ttl: missing unit (write 300s; units s ms m h)",
    "8: classes.chat.slo.ttft_shed: unknown key 'ttft_shed' (did you mean 'ttft_sched'?)",
    "9: classes.batch: class 'batch' has no load",
    "10: phases.window: missing unit (write 40s; units s ms m h)",
    "11: cache: 'hot' is not 'cold', 'warm' or 'as_is' (known: cold, warm, as_is)",
    "13: load.0.class: no class 'chatt' (did you mean 'chat'?)",
    "14: load.0.arrival: unknown type 'poison' (did you mean 'poisson'?)",
    "15: load.0.workload.output: missing key 'output'",
    "17: load.1.arrival: rate must be above 0, not 0.0",
    f"18: load.1.workload: missing key 'type' (known: {', '.join(WORKLOADS)})",
    "20: faults.0.when: expected {prefill: ..} or {decode: ..} or {after: ..} or 'queued', found {'decod': 5}"
    " (did you mean 'decode'?)",
    "21: faults.1.id: two faults have the id 'a' (faults.0 too)",
    "21: faults.1.when: prefill counts chunks from 1",
    "26: colour: unknown key 'colour' (known: headrace, target, classes, phases, load, seed, cache, faults,"
    " gates, timeouts, client, health, virtual)",
]


def errors(text: str, *overrides: str, virtual: bool = False) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "s.yaml", overrides, virtual=virtual)
    return [error.removeprefix("s.yaml:") for error in caught.value.errors]


def test_every_error_is_reported_at_once_with_its_line() -> None:
    """One reading names all that is wrong: keys, types, units, tables, references, in order of line."""
    found = errors(MANY_WRONG)
    assert [line for line in found if not line.startswith(("24:", "25:"))] == GOLDEN
    gates = [line for line in found if line.startswith(("24:", "25:"))]
    assert "did you mean 'ttft_sched'" in gates[0]
    assert "needs a unit" in gates[1]
    assert len(gates) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("window: 40s", "window: 0s"), "13: phases.window: the window is what is judged"),
        (("window: 40s", "cooldown: 0s"), "13: phases.window: missing key 'window'"),
        (("headrace: 1", "headrace: 2"), "2: headrace: 2 is not 1"),
        (("seed: 7", "seed: -7"), "3: seed: a seed is 0 or more"),
        (("seed: 7", "seed: yes"), "3: seed: expected a whole number, found True"),
        (("workers: 2", "workers: 0"), "7: target.engine.workers: an engine has 1 to 1024 workers"),
        (("workers: 2", "memory: {kv_blocks: 0}"), "7: target.engine.memory.kv_blocks: at least 1, not 0"),
        (("workers: 2", "scheduler: {max_running: 0}"), "7: target.engine.scheduler.max_running: at least 1"),
        (("workers: 2", "cache: {ttl: 0s}"), "7: target.engine.cache.ttl: a time longer than 0s"),
        (("workers: 2", "queue: {aging: 0s}"), "7: target.engine.queue.aging: a time longer than 0s"),
        (("workers: 2", "cost: {a: 0s, b: 0s}"), "7: target.engine.cost.a: a step with prompt tokens takes"),
        (("workers: 2", "threads: 2000"), "7: target.engine.threads: at most 1024, not 2000"),
        (("workers: 2", "cost: {sigma: -1.0}"), "7: target.engine.cost.sigma: at least 0, not -1.0"),
        (("workers: 2", "tenants: {a: {weight: 0}}"), "7: target.engine.tenants.a.weight: a number above 0"),
        (("workers: 2", "tenants: {a: {max_active: 0}}"), "7: target.engine.tenants.a.max_active: at least"),
        (("workers: 2", "tenants: {a: {class: bach}}"), "7: target.engine.tenants.a.class: bach is no class"),
        (("rank: 1", "retention: 1h"), "12: classes.batch.retention: 1h is not in cache.retention"),
        (("rank: 1", "queued: {tokens: 0}"), "12: classes.batch.queued.tokens: at least 1, not 0"),
        (("worker: 1", "worker: 2"), "22: faults.2.worker: there is no worker 2: the engine has 2"),
        (("worker: 1", "worker: -1"), "22: faults.2.worker: there is no worker -1: the engine has 2"),
        (
            (
                "kill_worker, worker: 1, at: 25s, when: {prefill: 1}",
                "freeze_worker, worker: -1, at: 1s, for: 1s",
            ),
            "22: faults.2.worker: there is no worker -1: the engine has 2, numbered from 0",
        ),
        (("headrace: 1", "headrace: true"), "2: headrace: True is not 1"),
        (("headrace: 1", "headrace: 1.0"), "2: headrace: 1.0 is not 1"),
        (("rate: 1.5/s", "rate: ٣/s"), "16: load.0.arrival.rate: '٣/s' is not a rate (write 1.5/s or 30/m"),
        (
            ("type: poisson, rate: 1.5/s", "type: gamma, rate: 1e-320/s, cv: 100.0"),
            "rate is too small: at least",
        ),
        (
            ("type: poisson, rate: 1.5/s", "type: ramp, from: 0/s, to: 5/s, over: 1e-300s"),
            "over is too small",
        ),
        (
            ("input: 600", "input: {median: 1, p99: " + "9" * 400 + "}"),
            "18: a whole number of more than 64 bits",
        ),
        (("seed: 7", "seed: 0x" + "f" * 6000), "3: a whole number of more than 64 bits"),
        (("at: 25s", "at: 45s"), "22: faults.2.at: 45 s is after the last request"),
        (("at: 15s", "at: 44s"), "20: faults.0.for: the burst ends at 46 s, after the load at 45 s"),
        (("rate: 8/s", "rate: 0/s"), "20: faults.0: a burst needs a rate and a 'for' above 0"),
        (("share: 10%", "share: 0%"), "21: faults.1: a share of 0% cancels nothing"),
        (("id: crash", "id: the crash"), "22: faults.2.id: 'the crash' cannot name a fault"),
        (("deadline: 30s", "stream: false"), "10: classes.chat.slo.itl: itl needs a stream"),
        (
            ("rank: 1", "default_output: 9, limits: {output: 5}"),
            "12: classes.batch.default_output: default_output 9",
        ),
        (("during crash", "during crush"), "25: gates.1: gate"),
        (("class: batch, ", "class: 5, "), "18: load.1.class: expected text, found 5"),
        (("  - {class: batch", "  - [batch"), "18: not YAML"),
        (
            ("model: simulated", "model: simulated\n    model: tiny"),
            "7: key 'model' stands here again; line 6",
        ),
        (("seed: 7", "5: 7"), "3: key '5' is not text (put it in quotes)"),
        (
            ("seed: 7", "seed: !!python/object:os.system x"),
            "3: the tag '!!python/object:os.system' does not fit",
        ),
        (("  batch: {rank: 1}", "  all: {}"), "12: classes.all: 'all' cannot name a class"),
        (("itl: 250ms", "itl: 0s"), "10: classes.chat.slo.itl: a bound must be longer than 0s"),
    ],
)
def test_each_mistake_is_named(good: str, change: tuple[str, str], says: str) -> None:
    """A single mistake in a good file gives its line, its key and what to do."""
    assert change[0] in good
    assert any(says in line for line in errors(good.replace(*change))), errors(good.replace(*change))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("client.retries.on=[200]", "on lists statuses of failed answers, 400 to 599, not 200"),
        ("client.retries.on=[429, -1]", "on lists statuses of failed answers, 400 to 599, not -1"),
        (
            "client={processes: 3}",
            "11: classes.chat.cap: in_flight 2 cannot be shared among client.processes 3",
        ),
        ("health.min_class_n=0", "min_class_n must be at least 1, not 0"),
        ("classes=", "no class 'chat'"),
        (
            "target.engine.router.decode_weight=1e-1",
            "found '1e-1' (YAML takes that for text: write it without quotes",
        ),
        ("client.retries.max='3'", "found '3' (YAML takes that for text: write it without quotes"),
    ],
)
def test_values_that_make_no_sense_are_refused(good: str, override: str, says: str) -> None:
    """The message names the key and what it may be."""
    found = errors(good.replace("deadline: 30s", "cap: {in_flight: 2}"), override)
    assert any(says in line for line in found), found


def test_a_url_target_refuses_what_needs_the_engine(good: str) -> None:
    """A foreign endpoint has no workers to kill and cannot hold a request in prefill."""
    text = good.replace("{decode: 5}", "{prefill: 1}")
    found = errors(text, "target={url: http://127.0.0.1:9, model: m}")
    assert found == [
        "21: faults.1.when: a URL cannot hold a request in queue or prefill; use {decode: n} or {after: t}",
        "22: faults.2.type: a URL has no workers that could be reached; this fault needs"
        " target: {engine: ..}",
    ]


def test_errors_of_overrides_name_the_override(good: str) -> None:
    """What --set broke is located there and not in the file; all of them are reported."""
    found = errors(good, "load.0.arrival.rate=3", "load.7.x=1", "nonsense", "seed.x=1", "cache=[")
    assert found[0] == "--set cache=[: the value is not YAML: " + found[0].partition("not YAML: ")[2]
    assert found[1:] == [
        "--set load.0.arrival.rate=3: load.0.arrival.rate: missing unit (write 3/s; units /s /m /h)",
        "--set load.7.x=1: load has items 0 to 1, not '7'",
        "--set nonsense: write KEY=VALUE, such as load.0.arrival.rate=3/s",
        "--set seed.x=1: seed has no keys",
    ]


def test_a_broken_virtual_block_is_found_without_virtual(good: str) -> None:
    """The block for virtual time is checked on every reading, with the lines of its own."""
    text = good + "virtual:\n  load.0.arrival.rate: 3\n  load.5.arrival: 1\n"
    assert errors(text) == [
        "27: load.0.arrival.rate: missing unit (write 3/s; units /s /m /h)",
        "28: load has items 0 to 1, not '5'",
    ]


@pytest.mark.parametrize("text", ["", "# only a question\n", "- a\n- b\n", "just text\n"])
def test_a_file_that_is_no_scenario_says_how_to_begin(text: str) -> None:
    """An empty or shapeless file is one error, not a traceback."""
    assert errors(text) == ["1: a scenario is keys and values; begin with `headrace: 1`"]


def test_an_alias_inside_itself_is_refused(good: str) -> None:
    """A recursive alias cannot hang the loader."""
    assert errors(good + "virtual: &v {a: *v}\n") == ["26: an alias may not contain itself"]


def test_a_missing_file_is_a_scenario_error(tmp_path: Path) -> None:
    """A path that cannot be read is reported as the scenario's error, with the path."""
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: cannot be read"):
        load(tmp_path / "nowhere.yaml")
