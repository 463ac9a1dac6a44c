"""Traces in a scenario: where their files are, their seed, and what is said of them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.tracefiles import TRACES, Trace
from scenarios.schema import LoadSpec, Scenario

_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


def placed(data: Any, folder: Path) -> Any:
    """The raw file with every trace that is there under its whole path: relative ones are looked for in the
    scenario's ``folder``, then in the working directory. What cannot be found stays as it was written."""
    if not isinstance(data, dict) or not isinstance(data.get("load"), list):
        return data
    return data | {"load": [_placed(load, folder) for load in data["load"]]}


def _placed(load: Any, folder: Path) -> Any:
    trace = load.get("trace") if isinstance(load, dict) else None
    if not isinstance(trace, dict) or not isinstance(trace.get("file"), str):
        return load
    return load | {"trace": trace | {"file": _path(trace["file"], folder)}}


def _path(file: str, folder: Path) -> str:
    named = Path(_VARIABLE.sub(lambda found: os.environ.get(found[1]) or found[0], file))
    there = (path.absolute() for path in (folder / named, named))
    return str(next((path for path in there if _exists(path)), file))


def _exists(path: Path) -> bool:
    """What cannot even be asked for, as a name of 5,000 characters, is refused when it is opened."""
    try:
        return path.exists()
    except OSError:
        return False


def seeded(scenario: Scenario) -> Scenario:
    """With the scenario's seed in every trace that has none of its own."""
    return replace(scenario, load=tuple(_seeded(load, scenario.seed or 0) for load in scenario.load))


def _seeded(load: LoadSpec, seed: int) -> LoadSpec:
    return load if load.trace is None else replace(load, trace=load.trace.seeded(seed))


def facts(scenario: Scenario) -> list[dict[str, Any]]:
    """Of each trace: its class, what was read, and how it is replayed; JSON."""
    span = scenario.phases.load_ns / 1e9
    return [
        {"class": load.class_, "type": _type(load.trace)} | load.trace.facts(span)
        for load in seeded(scenario).load
        if load.trace is not None
    ]


def _type(trace: Trace) -> str:
    return next(name for name, cls in TRACES.items() if type(trace) is cls)
