"""What a form cannot see: names that refer to nothing, and values that make no sense together.

``references`` reads the raw file, so that it also speaks where other parts are broken; ``sense`` needs a
scenario that parsed. Both give (path, message).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from engine.config_bounds import problems
from faults.burst import Burst
from faults.cancel import Cancel
from faults.when import InPrefill
from faults.worker import FreezeWorker, KillWorker
from loadgen.tls import default_context
from loadgen.vocabulary import vocabulary_of
from results.counters import COUNTERS
from results.gates import OUTCOMES, SEND_CLOCK, GateError, blind_to, parse_gate, wrong_clock
from results.metrics import METRICS
from scenarios.faulty import nearest
from scenarios.inert import inert_blocks, inert_gate
from scenarios.names import ID, RESERVED, nameless, names
from scenarios.parts import engine_config, goals
from scenarios.schema import ClassSpec, EngineTarget, Scenario, UrlTarget
from scenarios.sizes import MOST_REQUESTS, UNKNOWN, Model, lengths, sizes

Found = Iterator[tuple[tuple[str | int, ...], str]]

_WHOLE_ANSWER_SLOS = {"e2e", "e2e_sched"}
SEEDS = 2**63
"""A seed is below."""
_LOWEST_RANK = 255
_MOST_WORKERS = 1024


def references(data: Mapping[str, Any]) -> Found:
    """Classes, faults and metrics that are named but not there, or there but never used."""
    given = data.get("classes", ())
    classes = list(given or ()) if given is None or isinstance(given, dict) else None
    loads, faults = _blocks(data, "load"), _blocks(data, "faults")
    if classes is not None:
        for where, block in [*loads, *faults]:
            name = block.get("class")
            if isinstance(name, str) and name not in classes:
                yield (*where, "class"), f"no class {name!r}{nearest(name, classes)}"
        used = [block.get("class") for _, block in loads]
        for name in classes:
            if name not in used and loads:
                yield ("classes", name), f"class {name!r} has no load"
    ids: dict[str, int] = {}
    for where, block in faults:
        id = block.get("id")
        if isinstance(id, str) and id in ids:
            yield (*where, "id"), f"two faults have the id {id!r} (faults.{ids[id]} too)"
        elif isinstance(id, str):
            ids[id] = int(where[1])
    yield from _gates(data, classes, list(ids))


def _blocks(data: Mapping[str, Any], key: str) -> list[tuple[tuple[str | int, ...], dict[str, Any]]]:
    items = data.get(key)
    if not isinstance(items, list):
        return []
    return [((key, i), item) for i, item in enumerate(items) if isinstance(item, dict)]


def _gates(data: Mapping[str, Any], classes: list[str] | None, faults: list[str]) -> Found:
    gates = data.get("gates")
    for i, text in enumerate(gates if isinstance(gates, list) else []):
        if not isinstance(text, str):
            continue
        try:
            gate = parse_gate(text, classes, faults)
        except GateError as error:
            yield ("gates", i), str(error)
        else:
            if why := inert_gate(gate):
                yield ("gates", i), f"gate {text!r}: {why}"


def sense(scenario: Scenario, model: Model = UNKNOWN) -> Found:
    """Values that parse and still cannot be meant. ``model``: what is known of the target's."""
    if scenario.phases.window <= 0:
        yield ("phases", "window"), "the window is what is judged: it must be longer than 0s"
    if not scenario.load:
        yield ("load",), "nothing is sent: give at least one load"
    if scenario.seed is not None and not 0 <= scenario.seed < SEEDS:
        yield ("seed",), "a seed is 0 or more, and below 2^63"
    for key, limit in asdict(scenario.timeouts).items():
        if limit <= 0:
            yield ("timeouts", key), "a timeout must be longer than 0s: nothing could be answered in time"
    yield from names(scenario)
    yield from sizes(scenario)
    yield from lengths(scenario, model)
    if model.fault is not None:
        yield ("target", "engine", "model"), model.fault
    yield from inert_blocks(scenario)
    yield from _adapters(scenario)
    yield from _target(scenario)
    for name, spec in scenario.classes.items():
        yield from _class(name, spec)
        if spec.cap is not None and spec.cap.in_flight < (processes := scenario.client.processes):
            yield (
                ("classes", name, "cap"),
                f"in_flight {spec.cap.in_flight} cannot be shared among client.processes {processes}: each"
                " has one at least",
            )
    yield from _clocks(scenario)
    for i, fault in enumerate(scenario.faults):
        for key, message in _fault(fault, scenario):
            yield ("faults", i, key), message


def _adapters(scenario: Scenario) -> Found:
    """Adapters that the built-in engine would not know: it answers 404 for them."""
    if not isinstance(scenario.target, EngineTarget):
        return
    known = scenario.target.engine.adapters
    for i, load in enumerate(scenario.load):
        for name in [name for name in load.adapters or () if name not in known]:
            what = f"target.engine.adapters has no {name!r}{nearest(name, known)}"
            yield ("load", i, "adapters", name), what


def _clocks(scenario: Scenario) -> Found:
    """Gates by a clock that cannot tell them, and objectives that leave out the wait for a cap, which
    attainment would then leave out too (MEASUREMENT C17)."""
    classes = goals(scenario)
    for i, text in enumerate(scenario.gates):
        with suppress(GateError):  # said before, see ``_gates``
            gate = parse_gate(text, tuple(classes))
            if why := wrong_clock(gate, classes):
                yield ("gates", i), f"gate {text!r}: {why}"
            if gate.metric == "cost_per_good" and scenario.target.price is None:
                yield ("gates", i), f"gate {text!r}: it needs target.price, such as 2.40/h for one replica"
    for name, goal in classes.items():
        for metric in goal.slo.keys() & set(SEND_CLOCK):
            if why := blind_to(metric, {name: goal}):
                yield ("classes", name, "slo", metric), why


def _target(scenario: Scenario) -> Found:
    if isinstance(scenario.target, UrlTarget):
        yield from _url(scenario.target)
        return
    engine = scenario.target.engine
    if not 1 <= engine.workers <= _MOST_WORKERS:
        yield ("target", "engine", "workers"), f"an engine has 1 to {_MOST_WORKERS} workers"
    if engine.memory.kv_blocks is not None and engine.memory.total is not None:
        yield ("target", "engine", "memory"), "give kv_blocks or total, not both"
    for place, message in problems(engine_config(scenario)):
        if place[0] == "classes":
            yield _class_place(*place), message
        elif place != ("workers",):
            yield ("target", "engine", *place), message


def _class_place(classes: str, name: str, field: str) -> tuple[str, ...]:
    """Where a scenario says what the engine knows as this field of a class."""
    keys = {
        "max_input": ("limits", "input"),
        "max_output": ("limits", "output"),
        "max_total": ("limits", "total"),
        "max_queued": ("queued", "requests"),
        "max_queued_tokens": ("queued", "tokens"),
    }
    return classes, name, *keys.get(field, (field,))


def _url(target: UrlTarget) -> Found:
    if target.max_model_len is not None and target.max_model_len < 2:
        yield ("target", "max_model_len"), f"at least 2 tokens, not {target.max_model_len}"
    if target.ca is not None:
        yield from _authorities(target.url, target.ca)
    if target.tokenizer is not None:
        try:
            vocabulary_of(target.tokenizer)
        except ValueError as error:
            yield ("target", "tokenizer"), str(error)


def _authorities(url: str, ca: str) -> Found:
    if not url.startswith("https://"):
        yield ("target", "ca"), "http:// has no certificates to verify: remove ca, or write https://"
    try:
        default_context(ca)
    except OSError as error:
        yield ("target", "ca"), f"{ca} holds no certificates in PEM form: {error.strerror or error}"


def _class(name: str, spec: ClassSpec) -> Found:
    at = ("classes", name)
    if not ID.fullmatch(name) or name in RESERVED:
        yield at, f"{name!r} cannot name a class: letters, digits, _ and -, and neither {RESERVED}"
    elif why := nameless(name):
        yield at, f"{name!r} cannot name a class: it {why}"
    elif name in METRICS or name in COUNTERS or name in OUTCOMES:
        yield at, f"{name!r} cannot name a class: gates know it as a number of its own"
    for metric, bound in spec.slo.bounds().items():
        if not spec.stream and metric not in _WHOLE_ANSWER_SLOS:
            yield (*at, "slo", metric), f"{metric} needs a stream; class {name!r} has stream: false"
        if bound <= 0:
            yield (*at, "slo", metric), "a bound must be longer than 0s: no answer could meet it"
    if not 0 <= spec.rank <= _LOWEST_RANK:
        yield (*at, "rank"), f"a rank is 0 (most urgent) to {_LOWEST_RANK}"
    if spec.deadline is not None and spec.deadline <= 0:
        yield (*at, "deadline"), "a deadline must be longer than 0s"
    limits = {f"limits.{key}": value for key, value in asdict(spec.limits).items()}
    for key, value in (limits | {"default_output": spec.default_output}).items():
        if value is not None and value < 1:
            yield (*at, *key.split(".")), f"at least 1 token, not {value}"
    most = spec.limits.output
    if most is not None and spec.default_output is not None and spec.default_output > most:
        yield (*at, "default_output"), f"default_output {spec.default_output} is above limits.output {most}"


def _fault(fault: Any, scenario: Scenario) -> Iterator[tuple[str, str]]:
    """(key, message) of one fault."""
    end = scenario.phases.load_ns / 1e9
    if not ID.fullmatch(fault.id) or fault.id in RESERVED:
        yield "id", f"{fault.id!r} cannot name a fault: letters, digits, _ and -, and neither {RESERVED}"
    if getattr(fault, "at", 0.0) >= end:
        yield "at", f"{fault.at:g} s is after the last request: warmup, window and cooldown end at {end:g} s"
    elif isinstance(fault, Burst) and fault.at + fault.for_ > end:
        yield "for", f"the burst ends at {fault.at + fault.for_:g} s, after the load at {end:g} s"
    if isinstance(fault, Burst) and fault.count > MOST_REQUESTS:
        yield "rate", f"a burst of {fault.count:,} requests; at most {MOST_REQUESTS:,} can be planned"
    if isinstance(fault, KillWorker | FreezeWorker):
        yield from _worker(fault.worker, scenario)
    holds = isinstance(fault, Cancel) and (fault.when == "queued" or isinstance(fault.when, InPrefill))
    if holds and not isinstance(scenario.target, EngineTarget):
        yield "when", "a URL cannot hold a request in queue or prefill; use {decode: n} or {after: t}"


def _worker(worker: int, scenario: Scenario) -> Iterator[tuple[str, str]]:
    if not isinstance(scenario.target, EngineTarget):
        yield "type", "a URL has no workers that could be reached; this fault needs target: {engine: ..}"
        return
    count = scenario.target.engine.workers
    if not 0 <= worker < count:
        yield "worker", f"there is no worker {worker}: the engine has {count}, numbered from 0"
