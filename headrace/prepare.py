"""From a scenario file to a plan and to what the judge must know. Pure but for reading the file."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine.config import EngineConfig
from engine.model import ModelError
from engine.model.loader import load_tokenizer, max_positions, resolve
from faults.conductor import edit
from headrace.alone import SIMULATED, idle_cost
from headrace.errors import UsageFailed
from loadgen.arrivals import Concurrency
from loadgen.demand import Alone, demand, planned_arrivals
from loadgen.foresight import Problem, foresee, in_flight_bounds
from loadgen.plan import ClosedLoop, Plan, Shot
from loadgen.planning import last_of_users
from loadgen.text import Unit
from loadgen.vocabulary import vocabulary_of
from results.gates import parse_gates, planned_warnings
from results.judging import Judging, Users
from scenarios import checks, parts, traces
from scenarios import load as files
from scenarios.schema import EngineTarget, Scenario, UrlTarget
from scenarios.sizes import Model

SECOND = 1_000_000_000


def load_scenario(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    virtual: bool = False,
    seed: int | None = None,
    context: int | None = None,
) -> Scenario:
    """Read a file, or a shipped scenario by its name. A seed is drawn if neither it nor the caller has one.

    Raises UsageFailed with every error at once, loads that could pass the model's limit among them.
    ``context`` is that of a foreign target, where it tells it.
    """
    library = files.shipped()
    found = path if path.exists() else library.get(path.stem if path.suffix == ".yaml" else path.name)
    if found is None:
        raise UsageFailed(f"{path}: no such file; shipped scenarios: {', '.join(library)}")
    try:
        scenario = files.load(found, overrides, virtual=virtual, model=Model(context))
        if not virtual and (model := _own_model(scenario)) is not None:
            files.load(found, overrides, model=model)
    except files.ScenarioError as error:
        raise UsageFailed(f"{path} cannot be run:", *(f"  {line}" for line in error.errors)) from error
    if seed is not None:
        if not 0 <= seed < checks.SEEDS:
            raise UsageFailed(f"--seed {seed}: a seed is 0 or more, and below 2^63")
        return replace(scenario, seed=seed)
    return scenario if scenario.seed is not None else replace(scenario, seed=secrets.randbelow(2**31))


def _own_model(scenario: Scenario) -> Model | None:
    """What the model of our own engine takes; None if it is not there, which its start says."""
    if not isinstance(scenario.target, EngineTarget):
        return None
    config = parts.engine_config(scenario)
    try:
        model = resolve(config.model)
    except ModelError:
        return None
    limit = None
    try:
        limit = max_positions(config)
        if isinstance(model, Path):
            vocabulary_of(model / "tokenizer.json")
        return Model(limit, _template(model, _version(model)))
    except (ModelError, ValueError) as error:
        why = str(error).partition("; leave target.tokenizer")[0]  # that is the remedy for a URL
        return Model(limit, fault="; ".join(why.splitlines()))


def _version(model: Path | str) -> int:
    """Changes when a file of it does."""
    return max(file.stat().st_mtime_ns for file in model.iterdir()) if isinstance(model, Path) else 0


@lru_cache(maxsize=8)  # a sweep asks for each point, and loading takes a third of a second
def _template(model: Path | str, version: int) -> int:
    """Tokens that its chat template adds to a message of a user; 0 if it takes none alone."""
    tokenizer, said = load_tokenizer(EngineConfig(str(model))), "one two three"
    try:
        chat = tokenizer.render_chat([{"role": "user", "content": said}])
    except ValueError:
        return 0
    return len(tokenizer.encode(chat)) - len(tokenizer.encode(said))


def shipped() -> dict[str, str]:
    """The shipped scenarios: the question that each answers, by name."""
    return {name: files.load(path).question for name, path in files.shipped().items()}


def refuse_empty(plan: Plan) -> None:
    """Raises UsageFailed for a plan that sends nothing at all."""
    if not plan.shots:
        span = plan.phases.load_ns / SECOND
        raise UsageFailed(
            f"nothing would be sent: no request is due in the {span:g} s of load",
            "Raise a rate, or make the window longer.",
        )


def seed_of(scenario: Scenario) -> int:
    assert scenario.seed is not None, "load_scenario draws one"
    return scenario.seed


def make_plan(scenario: Scenario) -> Plan:
    """Every send of the run, edited by the faults that use door 1."""
    seed = seed_of(scenario)
    return edit(scenario.faults, _drawn(scenario, seed), seed)


def _drawn(scenario: Scenario, seed: int) -> Plan:
    return Plan.make(parts.loads(scenario), scenario.phases, seed, scenario.client.processes)


def judging_of(
    scenario: Scenario, plan: Plan, *, virtual: bool, strict: bool, allow_inconclusive: bool
) -> Judging:
    planned = {
        name: sum(shot.class_ == name and shot.phase == "window" for shot in plan.shots)
        for name in scenario.classes
    }
    goals = {name: replace(goal, planned=planned[name]) for name, goal in parts.goals(scenario).items()}
    return Judging(
        scenario=scenario.name,
        question=scenario.question,
        seed=seed_of(scenario),
        classes=goals,
        window=plan.phases.window_ns,
        gates=scenario.gates,
        virtual=virtual,
        plan_digest=plan.digest,
        cache=scenario.cache,
        own_engine=isinstance(scenario.target, EngineTarget),
        timeouts=asdict(scenario.timeouts),
        limits=scenario.health.limits(),
        users=_users(scenario, plan),
        service=parts.service(scenario),
        price=scenario.target.price,
        replicas=parts.replicas(scenario),
        demand={name: asdict(row) for name, row in demand(plan, _idle(scenario, virtual)).items()},
        strict=strict,
        allow_inconclusive=allow_inconclusive,
    )


def _users(scenario: Scenario, plan: Plan) -> dict[str, Users]:
    """Of closed loops that shall last as long as the load, whoever answers how fast."""
    thinking = {
        load.class_: round(load.arrival.think * SECOND)
        for load in parts.loads(scenario)
        if isinstance(load.arrival, ClosedLoop) and load.arrival.requests is None
    }
    last = last_of_users(plan.shots) if thinking else set()
    ids: dict[str, list[int]] = {name: [] for name in thinking}
    for shot in plan.shots:
        if shot.id in last and shot.class_ in ids:
            ids[shot.class_].append(shot.id)
    return {name: Users(tuple(found), thinking[name]) for name, found in ids.items() if found}


def _idle(scenario: Scenario, virtual: bool) -> Alone | None:
    """How long the idle target takes, where that is known before the run: from the cost model."""
    target = scenario.target
    if not isinstance(target, EngineTarget) or not (virtual or target.engine.model == SIMULATED):
        return None
    cost = idle_cost(target)
    return lambda shot, hit: cost.seconds(shot.n_in_asked, hit, shot.n_out_asked)


def foreseen(scenario: Scenario, plan: Plan) -> list[Problem]:
    """What the plan may need of this machine and will not get: files, connections, ports."""
    caps = parts.client_rules(scenario).caps
    groups: dict[str | None, list[Shot]] = {}
    for shot in plan.shots:
        groups.setdefault(shot.class_ if shot.class_ in caps else None, []).append(shot)
    sure = peak = 0
    for name, shots in groups.items():
        users = _restless(scenario, shots)
        bounds = in_flight_bounds(shots, scenario.timeouts.total, plan.phases.load_ns, users)
        held = [min(bound, caps[name].in_flight) if name is not None else bound for bound in bounds]
        sure, peak = max(sure, held[0]), peak + held[1]
    if scenario.client.connections is not None:
        most = scenario.client.connections * scenario.client.processes
        sure, peak = min(sure, most), min(peak, most)
    target = scenario.target
    same_host = isinstance(target, EngineTarget) or is_local(target.url)
    return foresee(peak, sure, scenario.client.processes, same_host)


def _restless(scenario: Scenario, shots: Sequence[Shot]) -> int:
    """Users of closed loops who never pause: each has a request in the air as long as the load lasts."""
    classes, pausing = {shot.class_ for shot in shots}, {shot.class_ for shot in shots if shot.after_ns}
    loads = [load for load in parts.loads(scenario) if load.class_ in classes - pausing]
    loops = [load.arrival for load in loads if isinstance(load.arrival, Concurrency)]
    span = scenario.phases.load_ns / SECOND
    return sum(loop.users for loop in loops if loop.requests is None and loop.ramp_up <= span)


def is_local(url: str) -> bool:
    """Whether ``url`` names this machine by an address that only it reaches."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def describe_plan(scenario: Scenario, plan: Plan, *, virtual: bool = False) -> dict[str, Any]:
    """What ``bench plan`` shows: the digest, a row of demand for each class, how traces are replayed, and
    warnings."""
    wants = demand(plan, _idle(scenario, virtual))
    rows = [
        {
            "class": name,
            "requests": sum(shot.class_ == name for shot in plan.shots),
            "in window": sum(shot.class_ == name and shot.phase == "window" for shot in plan.shots),
            "cancelled": sum(shot.class_ == name and shot.cancel is not None for shot in plan.shots),
            "requests/s": _rounded(want.requests_s, 3),
            "prefill tokens/s": _rounded(want.prefill_tokens_s, 1),
            "uncached tokens/s": _rounded(want.uncached_tokens_s, 1),
            "decode tokens/s": _rounded(want.decode_tokens_s, 1),
            "KV tokens held": _rounded(want.kv_tokens_mean, 0),
        }
        for name, want in wants.items()
    ]
    return {
        "scenario": scenario.name,
        "question": scenario.question,
        "seed": plan.seed,
        "digest": plan.digest,
        "classes": rows,
        "reasons": {name: want.reason for name, want in wants.items() if want.reason is not None},
        "arrivals": {name: asdict(facts) for name, facts in planned_arrivals(plan).items()},
        "traces": traces.facts(scenario),
        "warnings": [*warnings_of(scenario, plan), *(problem.text for problem in foreseen(scenario, plan))],
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def warnings_of(scenario: Scenario, plan: Plan) -> list[str]:
    """Classes of which nothing is due in the window, and gates that the planned number of requests cannot
    decide (MEASUREMENT C33)."""
    judging = judging_of(scenario, plan, virtual=False, strict=False, allow_inconclusive=False)
    planned = {name: goal.planned or 0 for name, goal in judging.classes.items()}
    reached = {shot.class_ for shot in plan.shots if shot.phase == "window" or shot.due_ns is None}
    idle = [f"class {name!r}: no request is due in the window" for name in planned if name not in reached]
    return [*idle, *planned_warnings(parse_gates(judging), planned)]


def text_unit(scenario: Scenario) -> Unit:
    """What one token of prompt text is for the target's tokenizer."""
    target = scenario.target
    return "byte" if isinstance(target, EngineTarget) and target.engine.model == "tiny" else "word"


def tokenizer_file(scenario: Scenario) -> str | None:
    """The tokenizer.json that makes prompts of exact lengths for a live target: the one that the scenario
    names, or that of our own engine's model. None: words are as usual."""
    target = scenario.target
    if isinstance(target, UrlTarget):
        return target.tokenizer
    model = resolve(target.engine.model)
    return str(model / "tokenizer.json") if isinstance(model, Path) else None
