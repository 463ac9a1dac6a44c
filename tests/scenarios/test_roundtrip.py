"""A scenario read, written out, and read again."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import TypeAdapter

from engine.config import EngineConfig
from faults.conductor import edit
from faults.when import InDecode, InPrefill
from loadgen.plan import Plan
from loadgen.targets import TARGETS, OpenAICompletions
from loadgen.tracefiles import Trace
from scenarios.forms import TABLES, keys, unit_of
from scenarios.load import json_schema, load, parse, resolved, shipped, tables
from scenarios.parts import deadlines, engine_config, goals, loads, target_job, whole
from scenarios.schema import Engine, EngineTarget, UrlTarget

SHIPPED = [(name, virtual) for name in shipped() for virtual in (False, True)]
ENTRIES = [(protocol, name, cls) for protocol, table in TABLES.items() for name, cls in table.items()]
WITHOUT_FILES = [entry for entry in ENTRIES if entry[0] is not Trace]
"""Traces need a file: test_traces.py."""
EXAMPLES = {"time": "5s", "rate": "3/s", "share": "10%", "size": "4GB"}


def test_values_arrive_as_dataclasses(good: str) -> None:
    """Units are converted, tables resolved and words of a `when` understood."""
    scenario = parse(good, "dir/what.yaml")
    assert (scenario.name, scenario.question) == ("what", "What does this do?")
    assert scenario.classes["chat"].slo.bounds() == {"ttft_sched": 2.0, "itl": 0.25}
    assert scenario.load[0].class_ == "chat"
    assert [fault.id for fault in scenario.faults] == ["rush", "hangup", "crash"]
    assert scenario.faults[1].when == InDecode(5)
    assert scenario.faults[2].when == InPrefill(1)


def test_written_out_it_reads_back_equal(good: str) -> None:
    """resolved() names every default and loads to an equal scenario."""
    scenario = parse(good, "s.yaml")
    assert parse(resolved(scenario), "s.yaml") == scenario
    assert "max_step_tokens: 512" in resolved(scenario)


@pytest.mark.parametrize(("name", "virtual"), SHIPPED)
def test_the_library_loads_plans_and_reads_back(name: str, virtual: bool) -> None:
    """Every shipped scenario has a question and gates, makes a plan, and survives being written out."""
    scenario = load(shipped()[name], virtual=virtual)
    assert scenario.question.endswith("?")
    assert scenario.gates
    assert scenario.seed is not None
    assert parse(resolved(scenario), f"{name}.yaml") == scenario
    plan = edit(scenario.faults, Plan.make(loads(scenario), scenario.phases, scenario.seed), scenario.seed)
    assert [shot.id for shot in plan.shots] == list(range(len(plan.shots)))
    for shot in plan.shots:
        limits = scenario.classes[shot.class_].limits
        assert limits.total is None or shot.n_in_asked + shot.n_out_asked <= limits.total
    for fault in scenario.faults:
        assert not hasattr(fault, "class_") or any(shot.fault == fault.id for shot in plan.shots)


def test_the_virtual_block_applies_in_virtual_time_only() -> None:
    """accidental-reset is about 1,500 tokens long live and 60,000 in virtual time."""
    path = shipped()["accidental-reset"]
    live, virtual = load(path), load(path, virtual=True)
    assert live.load[0].workload.system == 1500
    assert virtual.load[0].workload.system == 60_000
    assert live.virtual
    assert virtual.virtual == {}


def test_overrides_win_over_the_virtual_block() -> None:
    """What the user says on the command line is last."""
    path = shipped()["accidental-reset"]
    scenario = load(path, ["load.0.workload.system=900", "seed=3"], virtual=True)
    assert scenario.load[0].workload.system == 900
    assert scenario.seed == 3


def test_an_override_can_replace_the_target(good: str) -> None:
    """--target URL is one override of the target block."""
    scenario = parse(
        good, "s.yaml", ["target={url: http://127.0.0.1:8000, model: m}", "faults=[]", "gates=[]"]
    )
    assert scenario.target == UrlTarget("http://127.0.0.1:8000", "m")


def test_lists_with_everything_commented_out_are_empty(good: str) -> None:
    """`faults:` with nothing under it means no faults."""
    text = good[: good.index("faults:")] + "faults:\n  # - none\ngates:\n"
    scenario = parse(text, "s.yaml")
    assert scenario.faults == ()
    assert scenario.gates == ()


def test_the_engine_block_mirrors_the_engine() -> None:
    """Every control of the engine's configuration can be set in a scenario, with the same default."""
    own = {f.name: getattr(Engine(), f.name) for f in dataclasses.fields(Engine)}
    theirs = {f.name: getattr(EngineConfig(), f.name) for f in dataclasses.fields(EngineConfig)}
    theirs.pop("classes")
    theirs.pop("slo_bounds")
    assert own == theirs


def test_the_engine_gets_classes_and_slo_bounds(good: str) -> None:
    """Classes become the engine's rows, SLO bounds its bucket bounds; unnamed clients go to default."""
    config = engine_config(parse(good, "s.yaml"))
    assert (config.model, config.workers) == ("simulated", 2)
    assert set(config.classes) == {"default", "chat", "batch"}
    assert config.classes["chat"].deadline == 30.0
    assert config.classes["batch"].rank == 1
    assert config.slo_bounds == {"itl": (0.25,), "ttft": (2.0,)}


def test_the_judge_gets_goals_and_the_plan_gets_ranks(good: str) -> None:
    """Goals carry the SLO in seconds; loads carry the rank of their class."""
    scenario = parse(good, "s.yaml")
    assert goals(scenario)["chat"].slo == {"ttft_sched": 2.0, "itl": 0.25}
    assert [load.rank for load in loads(scenario)] == [0, 1]
    assert deadlines(scenario) == {"chat": 30.0}


def test_a_url_target_makes_a_dialect(good: str) -> None:
    """What a scenario says of a foreign endpoint is what its dialect is made of."""
    target = "target={url: http://x, model: m, dialect: openai_completions, accepts: [ignore_eos]}"
    scenario = parse(
        good.replace("{rank: 1}", "{stream: false}"), "s.yaml", [target, "faults=[]", "gates=[]"]
    )
    assert isinstance(scenario.target, UrlTarget)
    assert target_job(scenario.target).make() == OpenAICompletions("m", ignore_eos=True)
    assert whole(scenario) == ("batch",)


def test_every_dialect_can_be_named() -> None:
    """The schema knows the dialects of the load generator, and no other."""
    assert get_args(get_type_hints(UrlTarget)["dialect"]) == tuple(TARGETS)


def test_a_url_has_no_engine_to_configure(good: str) -> None:
    """Asking for the engine of a URL target is refused."""
    scenario = parse(good, "s.yaml", ["target={url: http://x, model: m}", "faults=[]", "gates=[]"])
    with pytest.raises(ValueError, match="no engine"):
        engine_config(scenario)
    assert not isinstance(scenario.target, EngineTarget)


@pytest.mark.parametrize(("protocol", "name", "cls"), WITHOUT_FILES)
def test_every_table_entry_is_documented_and_listed(protocol: type, name: str, cls: type) -> None:
    """bench list shows each entry with a help text and its fields with their notation."""
    table = {"Arrival": "arrivals", "Workload": "workloads", "Fault": "faults"}[protocol.__name__]
    listed = {entry["name"]: entry for entry in tables()[table]}
    assert len(listed[name]["doc"]) > 20
    assert list(listed[name]["fields"]) == [f.name.rstrip("_") for f in dataclasses.fields(cls)]
    assert all(listed[name]["fields"].values())


@pytest.mark.parametrize(("protocol", "name", "cls"), WITHOUT_FILES)
def test_every_table_entry_can_be_written_in_yaml(good: str, protocol: type, name: str, cls: type) -> None:
    """Required keys alone, with usual values, build each entry, and it reads back equal."""
    block = {"type": name} | {key: _example(key, hint) for key, f, hint in keys(cls) if _required(f)}
    where = {"Arrival": "load.0.arrival", "Workload": "load.0.workload", "Fault": "faults"}[protocol.__name__]
    value = json.dumps([block] if where == "faults" else block)
    scenario = parse(good, "s.yaml", [f"{where}={value}", "gates=[]"])
    made = scenario.faults[0] if where == "faults" else getattr(scenario.load[0], where.split(".")[-1])
    assert type(made) is cls
    assert parse(resolved(scenario), "s.yaml") == scenario


def _required(f: dataclasses.Field[object]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _example(key: str, hint: object) -> object:
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_origin(hint) is tuple:
        return [_example(key, get_args(hint)[0])]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {key: _example(key, inner) for key, f, inner in keys(hint) if _required(f)}
    unit = unit_of(hint)
    if unit is not None:
        return EXAMPLES[unit.noun.split()[-1]]
    return {"id": "x", "class": "chat", "when": "queued"}.get(key, 1)


def test_the_json_schema_is_one_and_knows_every_entry() -> None:
    """Editors get a closed schema in which each table entry is a choice."""
    schema = json_schema()
    assert schema["additionalProperties"] is False
    text = json.dumps(schema)
    for _, name, _ in ENTRIES:
        assert f'"const": "{name}"' in text
    TypeAdapter(dict[str, object]).validate_python(schema)


def test_the_listing_shows_notation_and_defaults() -> None:
    """Defaults stand in the listing as they would in a file, and a program can read all of it."""
    kill = next(entry for entry in tables()["faults"] if entry["name"] == "kill_worker")
    assert kill["fields"]["within"] == 'time (5s or 250ms) = "10s"'
    assert kill["fields"]["worker"] == "whole number"
    assert kill["fields"]["when"] == "{prefill: ..} or {decode: ..}, optional"
    json.dumps(tables())
