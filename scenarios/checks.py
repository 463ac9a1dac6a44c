"""What a form cannot see: names that refer to nothing, and values that make no sense together.

``references`` reads the raw file, so that it also speaks where other parts are broken; ``sense`` needs a
scenario that parsed. Both give (path, message).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from faults.burst import Burst
from faults.cancel import Cancel
from faults.when import InPrefill
from faults.worker import FreezeWorker, KillWorker
from results.gates import GateError, parse_gate
from scenarios.faulty import nearest
from scenarios.schema import ClassSpec, EngineTarget, Scenario

Found = Iterator[tuple[tuple[str | int, ...], str]]

_WHOLE_ANSWER_SLOS = {"e2e", "e2e_sched"}
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_RESERVED = ("all", "steady")


def references(data: Mapping[str, Any]) -> Found:
    """Classes, faults and metrics that are named but not there, or there but never used."""
    classes = list(data["classes"]) if isinstance(data.get("classes"), dict) else None
    loads, faults = _blocks(data, "load"), _blocks(data, "faults")
    if classes is not None:
        for where, block in [*loads, *faults]:
            name = block.get("class")
            if isinstance(name, str) and name not in classes:
                yield (*where, "class"), f"no class {name!r}{nearest(name, classes)}"
        used = {block.get("class") for _, block in loads}
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
            parse_gate(text, classes, faults)
        except GateError as error:
            yield ("gates", i), str(error)


def sense(scenario: Scenario) -> Found:
    """Values that parse and still cannot be meant."""
    if scenario.phases.window <= 0:
        yield ("phases", "window"), "the window is what is judged: it must be longer than 0s"
    if not scenario.load:
        yield ("load",), "nothing is sent: give at least one load"
    if scenario.seed is not None and scenario.seed < 0:
        yield ("seed",), "a seed is 0 or more"
    yield from _target(scenario)
    for name, spec in scenario.classes.items():
        yield from _class(name, spec)
    for i, fault in enumerate(scenario.faults):
        for key, message in _fault(fault, scenario):
            yield ("faults", i, key), message


def _target(scenario: Scenario) -> Found:
    if not isinstance(scenario.target, EngineTarget):
        return
    engine = scenario.target.engine
    if engine.workers < 1:
        yield ("target", "engine", "workers"), "an engine has at least 1 worker"
    if engine.memory.kv_blocks is not None and engine.memory.total is not None:
        yield ("target", "engine", "memory"), "give kv_blocks or total, not both"


def _class(name: str, spec: ClassSpec) -> Found:
    at = ("classes", name)
    if not _NAME.fullmatch(name) or name in _RESERVED:
        yield at, f"{name!r} cannot name a class: letters, digits, _ and -, and neither {_RESERVED}"
    if not spec.stream:
        bounds = spec.slo.bounds()
        for metric in bounds.keys() - _WHOLE_ANSWER_SLOS:
            yield (*at, "slo", metric), f"{metric} needs a stream; class {name!r} has stream: false"
    most = spec.limits.output
    if most is not None and spec.default_output is not None and spec.default_output > most:
        yield (*at, "default_output"), f"default_output {spec.default_output} is above limits.output {most}"


def _fault(fault: Any, scenario: Scenario) -> Iterator[tuple[str, str]]:
    """(key, message) of one fault."""
    end = scenario.phases.load_ns / 1e9
    if not _NAME.fullmatch(fault.id):
        yield "id", f"{fault.id!r} cannot name a fault: letters, digits, _ and -"
    if getattr(fault, "at", 0.0) >= end:
        yield "at", f"{fault.at:g} s is after the last request: warmup, window and cooldown end at {end:g} s"
    elif isinstance(fault, Burst) and fault.at + fault.for_ > end:
        yield "for", f"the burst ends at {fault.at + fault.for_:g} s, after the load at {end:g} s"
    if isinstance(fault, KillWorker | FreezeWorker):
        yield from _worker(fault.worker, scenario)
    holds = isinstance(fault, Cancel) and (fault.when == "queued" or isinstance(fault.when, InPrefill))
    if holds and not isinstance(scenario.target, EngineTarget):
        yield "when", "a URL cannot hold a request in queue or prefill; use {decode: n} or {after: t}"


def _worker(worker: int, scenario: Scenario) -> Iterator[tuple[str, str]]:
    if not isinstance(scenario.target, EngineTarget):
        yield "type", "a URL has no workers that could be reached; this fault needs target: {engine: ..}"
    elif not 0 <= worker < (count := scenario.target.engine.workers):
        yield "worker", f"there is no worker {worker}: the engine has {count}, numbered from 0"
