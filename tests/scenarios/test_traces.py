"""Traces in a scenario: found, checked with every line, written out, planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.arrivals import Constant
from loadgen.plan import Load, Phases, Plan
from loadgen.plan_io import write_plan
from loadgen.tracefiles import TRACES
from loadgen.workload import Fixed
from scenarios import traces
from scenarios.forms import NotAKey, keys
from scenarios.load import ScenarioError, load, parse, resolved, tables
from scenarios.parts import loads

SCENARIO = """\
# What does a recorded load do?
headrace: 1
seed: 7
target: {engine: {model: simulated}}
classes:
  chat: {slo: {ttft_sched: 2s}}
phases: {window: 40s}
load:
  - class: chat
    trace: {type: mooncake, file: day.jsonl}
"""
ROWS = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 1000, "input_length": 512, "output_length": 6, "hash_ids": [0]},
    {"timestamp": 50_000, "input_length": 1200, "output_length": 7, "hash_ids": [0, 2, 3]},
]
DAY = "".join(json.dumps(row) + "\n" for row in ROWS)

WEKA = {"t": 0, "type": "n", "model": "m", "in": 64, "out": 1, "blocks": [[1, 1]]}
TALK = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hi!"}]
CHAT = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 16, "output_length": 1}
COMES = "arrival: {type: constant, rate: 1/s}"
SMALL = {
    "mooncake": (DAY, "spread: 3s, thin: 90%, compress: 2, limit: 9, max_input: 900, over: cut"),
    "weka": (json.dumps({"id": "a", "block_size": 64, "requests": [WEKA]}), f"{COMES}, warm_prefix: 50%"),
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,48,10\n", "seed: 4"),
    "burstgpt": ("Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,9,9\n", "failed: send"),
    "bailian": (json.dumps(CHAT | {"type": "text", "turn": 1, "hash_ids": [4]}), "start_at: 0s"),
    "sharegpt": (json.dumps([{"conversations": TALK}]), f"{COMES}, history: live, think: 2s"),
    "swe_agent": (
        json.dumps({"history": [{"role": role, "content": "x"} for role in ("user", "assistant")]}),
        COMES,
    ),
    "mt_bench": (json.dumps({"turns": ["Why?"]}), f"{COMES}, output: 16"),
    "vidur": ("num_prefill_tokens,num_decode_tokens\n5,6\n", COMES),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario beside its trace, away from the working directory."""
    made = tmp_path / "scenarios"
    made.mkdir()
    (made / "day.jsonl").write_text(DAY)
    (made / "s.yaml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return made


def errors(folder: Path, *overrides: str) -> list[str]:
    """What is said of the scenario, with paths from its folder on."""
    with pytest.raises(ScenarioError) as caught:
        load(folder / "s.yaml", overrides)
    return [line.replace(f"{folder}/", "") for line in caught.value.errors]


def test_a_trace_is_planned_with_its_class_and_the_seed(folder: Path) -> None:
    """What is due in the time of load, with the run's seed in it."""
    scenario = load(folder / "s.yaml")
    (made,) = loads(scenario)
    plan = Plan.make([made], scenario.phases, 7)
    assert [(s.class_, s.due_ns, s.n_in_asked) for s in plan.shots] == [
        ("chat", 0, 700),
        ("chat", 10**9, 512),
    ]
    (facts,) = traces.facts(scenario)
    assert (facts["class"], facts["type"], facts["seed"], facts["rows"]) == ("chat", "mooncake", 7, 3)
    assert facts["says"] == ["Sessions due after the end of the load, not planned: 1."]


@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_trace_can_be_written_in_yaml(folder: Path, name: str) -> None:
    """Each format with settings of its own loads, plans, and reads back equal from wherever it is put."""
    text, settings = SMALL[name]
    (folder / "day.jsonl").write_text(text)
    scenario = load(folder / "s.yaml", [f"load.0.trace={{type: {name}, file: day.jsonl, {settings}}}"])
    assert type(scenario.load[0].trace) is TRACES[name]
    assert parse(resolved(scenario), "elsewhere/s.yaml") == scenario
    assert Plan.make(loads(scenario), scenario.phases, 7).shots


def test_a_run_is_a_trace(folder: Path) -> None:
    """`type: run` names a run directory; all of its settings can be written."""
    (folder / "before").mkdir()
    plan = Plan.make([Load("c", Constant(1.0), Fixed(9, 2))], Phases(window=3.0), 1)
    write_plan(plan, folder / "before" / "plan.parquet")
    trace = "{type: run, file: before, classes: [c], lengths: asked}"
    scenario = load(folder / "s.yaml", [f"load.0.trace={trace}"])
    assert [s.due_ns for s in Plan.make(loads(scenario), scenario.phases, 7).shots] == [0, 10**9, 2 * 10**9]
    assert parse(resolved(scenario), "elsewhere/s.yaml") == scenario


@pytest.mark.parametrize(("name", "cls"), sorted(TRACES.items()))
def test_every_trace_is_documented_and_listed(name: str, cls: type) -> None:
    """bench list shows each format with a help text and its settings; what was read is no setting."""
    listed = {entry["name"]: entry for entry in tables()["traces"]}[name]
    assert len(listed["doc"]) > 20
    assert list(listed["fields"]) == [key for key, _, _ in keys(cls)]
    assert "replay" not in listed["fields"]
    assert NotAKey == "not a key"


def test_a_trace_is_looked_for_beside_the_scenario_first(folder: Path, tmp_path: Path) -> None:
    """Then in the working directory; an absolute path and one with a variable need no looking."""
    (tmp_path / "day.jsonl").write_text(DAY.splitlines()[0])
    (tmp_path / "here.jsonl").write_text(DAY)

    def rows(file: str) -> int:
        (facts,) = traces.facts(load(folder / "s.yaml", [f"load.0.trace.file={file}"]))
        return int(facts["rows"])

    assert [rows(file) for file in ("day.jsonl", "here.jsonl", str(tmp_path / "day.jsonl"))] == [3, 3, 1]


def test_a_variable_in_the_path_is_the_environments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`${NAME}` is replaced; if it is not set, the scenario's line says so."""
    scenario = ["load.0.trace.file=${HR_TRACES}/day.jsonl"]
    monkeypatch.setenv("HR_TRACES", str(folder))
    assert str(folder) in resolved(load(folder / "s.yaml", scenario))
    monkeypatch.delenv("HR_TRACES")
    assert errors(folder, *scenario) == [
        "s.yaml:10: load.0.trace: ${HR_TRACES}/day.jsonl: the environment variable HR_TRACES is not set"
    ]


def test_broken_lines_stand_beside_the_scenarios_own_errors(folder: Path) -> None:
    """One reading gives all of both, each with file and line, and no plan."""
    lines = DAY.splitlines()
    lines[0] = lines[0].replace("700", "0")
    lines[2] = lines[2].replace("[0, 2, 3]", "[0, 2, 3, 4]").replace("timestamp", "time")
    (folder / "day.jsonl").write_text("\n".join(lines))
    assert errors(folder, "phases.window=40") == [
        "--set phases.window=40: phases.window: missing unit (write 40s; units s ms m h)",
        "day.jsonl:1: input_length: a length is 1 to 100,000,000 tokens, not 0",
        "day.jsonl:3: unknown key 'time' (did you mean 'timestamp'?)",
        "day.jsonl:3: missing 'timestamp'",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("load.0.trace.file=no.jsonl", "s.yaml:10: load.0.trace: no.jsonl: no such file, neither beside"),
        ("load.0.trace.type=mooncak", "load.0.trace: unknown type 'mooncak' (did you mean 'mooncake'?)"),
        ("load.0.trace.compres=2", "load.0.trace.compres: unknown key 'compres' (did you mean 'compress'?)"),
        ("load.0.trace.spread=3", "load.0.trace.spread: missing unit (write 3s; units s ms m h)"),
        ("load.0.trace.thin=0%", "s.yaml:10: load.0.trace: thin keeps a share above 0%, not 0"),
        ("load.0.trace.replay=1", "load.0.trace.replay: unknown key 'replay'"),
        ("load.0.trace={type: vidur, file: day.jsonl}", "load.0.trace.arrival: missing key 'arrival'"),
        (
            "load.0.workload={type: fixed, input: 5, output: 5}",
            "s.yaml:9: load.0: a load has a trace, or arrival and workload; this one has trace and workload",
        ),
        (
            "load.0={class: chat}",
            "load.0: missing key 'arrival' (a load has arrival and workload, or a trace)",
        ),
        (
            "load.0={class: chat, arrival: {type: constant, rate: 1/s}}",
            "load.0: missing key 'workload' (a load has arrival and workload, or a trace)",
        ),
        ("load.0.trace.start_at=1h", "s.yaml:10: load.0.trace: nothing of the trace is left"),
    ],
)
def test_mistakes_are_located(folder: Path, change: str, says: str) -> None:
    """In the scenario's line or the override that made them."""
    assert any(says in line for line in errors(folder, change)), errors(folder, change)


def test_a_trace_of_which_nothing_is_due_is_refused(folder: Path) -> None:
    """A silent run is no run."""
    (folder / "day.jsonl").write_text(DAY.splitlines()[0] + "\n" + DAY.splitlines()[2])
    found = errors(folder, "load.0.trace.start_at=1s", "phases.window=20s")
    assert found == [
        "s.yaml:10: load.0.trace: nothing of it is due in the 20 s of load: see start_at and compress"
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("classes.chat.limits={input: 600}", "limits.input of class 'chat' is 600, this asks for 700 tokens"),
        ("classes.chat.limits={output: 4}", "limits.output of class 'chat' is 4, this asks for 5 tokens"),
        ("classes.chat.limits={total: 700}", "limits.total of class 'chat' is 700, this asks for 705 tokens"),
        ("target.engine.max_model_len=700", "target.engine.max_model_len is 700, this asks for 705 tokens"),
    ],
)
def test_a_request_that_is_too_long_is_refused_by_its_line(folder: Path, change: str, says: str) -> None:
    """Line 1 of the trace; line 3 is longer still, but due after the end."""
    first, *others = errors(folder, change)
    assert first.startswith(f"day.jsonl:1: {says}: raise it, or set max_input or max_output with over:")
    assert all(line.startswith("day.jsonl:2:") for line in others)


def test_cut_requests_fit(folder: Path) -> None:
    """What `over: cut` leaves is what is checked."""
    limits = "classes.chat.limits={input: 600, total: 605}"
    assert load(folder / "s.yaml", [limits, "load.0.trace.max_input=600", "load.0.trace.over=cut"])


def test_users_of_a_closed_loop_take_sessions_of_a_trace(folder: Path) -> None:
    """Each takes its next one when it has its answer."""
    (folder / "day.jsonl").write_text(SMALL["vidur"][0])
    users = "arrival: {type: concurrency, users: 2, requests: 3, think: 1s}"
    scenario = load(folder / "s.yaml", [f"load.0.trace={{type: vidur, file: day.jsonl, {users}}}"])
    shots = Plan.make(loads(scenario), scenario.phases, 7).shots
    assert [(s.fresh, s.n_in_asked) for s in shots] == [(False, 5)] * 2 + [(True, 5)] * 4


def test_the_virtual_block_can_name_another_trace(folder: Path) -> None:
    """A short one for virtual time; it is checked on every reading."""
    (folder / "short.jsonl").write_text(DAY.splitlines()[0])
    (folder / "s.yaml").write_text(SCENARIO + "virtual:\n  load.0.trace.file: short.jsonl\n")
    (facts,) = traces.facts(load(folder / "s.yaml", virtual=True))
    assert facts["rows"] == 1
    (folder / "short.jsonl").write_text("{")
    assert errors(folder)[0].startswith("short.jsonl:1: not JSON")
