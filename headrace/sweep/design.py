"""All that is fixed before the first point of a sweep, and checked before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

from headrace import prepare
from headrace.errors import UsageFailed
from headrace.live import target_override
from headrace.sweep.axes import Axis, parse_axes
from loadgen.streams import stream
from results.sweep.points import objectives
from results.sweep.spec import SweepSpec
from scenarios.load import resolved
from scenarios.schema import EngineTarget, Scenario
from scenarios.units import UNITS

SHORTEST_TESTED_S = 30.0
"""A window in which over-saturation can be told (MEASUREMENT C36)."""
MOST_CELLS = 1000


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What the command line asks for, as it was written."""

    scenario: str
    axes: tuple[str, ...] = ()
    target: str | None = None
    virtual: bool = False
    seed: int | None = None
    overrides: tuple[str, ...] = ()
    headroom: str = "20%"
    width: str = "10%"
    step_window: str | None = None
    """Absent: the scenario's window, but at least 30 s."""
    longest_window: str | None = None
    """Absent: four times the first window."""


@dataclass(frozen=True, slots=True)
class Design:
    """``spec`` is what sweep.json tells of it; the rest is needed to make a scenario of a point."""

    options: SweepOptions
    spec: SweepSpec
    axes: tuple[Axis, ...]
    fixed: tuple[str, ...]
    """Overrides of every point: those of the user, then the objectives."""

    def overrides(self, cell: int, value: float | None, window: float) -> tuple[str, ...]:
        """Of one point; later ones win."""
        levels = self.at(cell, value)
        laid = [line for axis in self.axes for line in axis.set(levels[axis.key])]
        return (*self.fixed, *laid, f"phases.window={window!r}s")

    def at(self, cell: int, value: float | None) -> dict[str, str]:
        """The value of every axis, as text, in the order of the axes."""
        searched, levels = self.spec.searched, dict(self.spec.cells[cell])
        if searched is not None and value is not None:
            levels[searched.key] = searched.text(value)
        return {axis.key: levels[axis.key] for axis in self.axes}


def make_design(options: SweepOptions, seeds: tuple[int, int] | None = None) -> Design:
    """``seeds``: those of a sweep that goes on. Raises UsageFailed with all that is wrong."""
    if options.virtual and options.target is not None:
        raise UsageFailed("--virtual and --target exclude each other: a URL has no virtual time")
    base = _base(options, seeds)
    if options.virtual and not isinstance(base.target, EngineTarget):
        raise UsageFailed("--virtual needs `target: {engine: ..}`: a URL has no virtual time")
    axes = parse_axes(options.axes, base)
    spec = _spec(options, base, axes, seeds)
    design = Design(options, spec, axes, (*options.overrides, *_objectives_override(base, spec)))
    _try_all(design)
    return design


def _base(options: SweepOptions, seeds: tuple[int, int] | None) -> Scenario:
    overrides = (*target_overrides(options), *options.overrides)
    seed = seeds[0] if seeds is not None else options.seed
    return prepare.load_scenario(Path(options.scenario), overrides, virtual=options.virtual, seed=seed)


def target_overrides(options: SweepOptions) -> tuple[str, ...]:
    return () if options.target is None else (target_override(options.target),)


def _spec(
    options: SweepOptions, base: Scenario, axes: tuple[Axis, ...], seeds: tuple[int, int] | None
) -> SweepSpec:
    has_slo = any(spec.slo.bounds() for spec in base.classes.values())
    wanted, unjudged = objectives(base.gates, has_slo, tuple(base.classes))
    if not wanted:
        raise UsageFailed(
            f"{options.scenario}: nothing to hold: no gate can be judged, and no class has an slo",
            "Give gates, such as `attainment >= 90%` with an slo, or `chat.ttft_sched.p90 < 2s`.",
        )
    seed = prepare.seed_of(base)
    return SweepSpec(
        scenario=base.name,
        question=base.question,
        virtual=options.virtual,
        own_engine=isinstance(base.target, EngineTarget),
        seeds=seeds or (seed, _second_seed(seed)),
        windows=_windows(options, base),
        headroom=_share("--headroom", options.headroom, 0, 0.99),
        width=_share("--width", options.width, 0.001, 1),
        objectives=tuple(wanted),
        default_objective=not any(gate in base.gates for gate in wanted),
        unjudged=tuple(unjudged),
        axes=tuple(axis.spec for axis in axes),
        cells=_cells(axes),
        digest=blake2b(resolved(base).encode(), digest_size=16).hexdigest(),
        asked=asdict(options),
    )


def _second_seed(seed: int) -> int:
    return int(stream(seed, "sweep", "second run").integers(2**31))


def _cells(axes: Sequence[Axis]) -> tuple[dict[str, str], ...]:
    """The crossed values of all axes that are not searched, the last axis fastest."""
    listed = [axis.spec for axis in axes if not axis.spec.searched]
    count = 1
    for spec in listed:
        count *= len(spec.values)
    if count > MOST_CELLS:
        raise UsageFailed(f"{count:,} crossed values are too many; at most {MOST_CELLS:,}")
    keys = [spec.key for spec in listed]
    return tuple(dict(zip(keys, values, strict=True)) for values in product(*(s.values for s in listed)))


def _windows(options: SweepOptions, base: Scenario) -> tuple[float, ...]:
    """The first window, then twice as long each time, up to the longest."""
    first = max(base.phases.window, SHORTEST_TESTED_S)
    if options.step_window is not None:
        first = _seconds("--step-window", options.step_window)
    longest = 4 * first
    if options.longest_window is not None:
        longest = _seconds("--longest-window", options.longest_window)
    if longest < first:
        raise UsageFailed(f"--longest-window {longest:g}s is shorter than the first window, {first:g}s")
    windows = [first]
    while windows[-1] * 2 <= longest * (1 + 1e-9):
        windows.append(windows[-1] * 2)
    return tuple(windows)


def _seconds(option: str, text: str) -> float:
    try:
        found = float(UNITS["s"].parse(text))
    except ValueError as error:
        raise UsageFailed(f"{option}: {error}") from error
    if found <= 0:
        raise UsageFailed(f"{option}: a window is longer than 0s")
    return found


def _share(option: str, text: str, least: float, most: float) -> float:
    try:
        found = float(UNITS["share"].parse(text))
    except ValueError as error:
        raise UsageFailed(f"{option}: {error}") from error
    if not least <= found <= most:
        raise UsageFailed(f"{option}: {text} is not between {least:.1%} and {most:.0%}")
    return found


def _objectives_override(base: Scenario, spec: SweepSpec) -> tuple[str, ...]:
    """Only where they are not the scenario's own gates already."""
    return () if spec.objectives == base.gates else (f"gates={json.dumps(list(spec.objectives))}",)


def _try_all(design: Design) -> None:
    """Load the scenario of every cell, at both ends of what is searched and with the first window and the
    longest, which more of a trace fits in. Raises UsageFailed with every error once."""
    first, longest = design.spec.windows[0], design.spec.windows[-1]
    errors = _refused(design, first)
    later = [error for error in _refused(design, longest) if error not in errors] if longest > first else []
    if later:
        later.append(f"  only in windows of more than {first:g}s: --longest-window {first:g}s has none")
    if errors or later:
        raise UsageFailed("this sweep cannot be run:", *errors, *later)


def _refused(design: Design, window: float) -> list[str]:
    """What is wrong with any of the scenarios, each error once."""
    errors: dict[str, None] = {}
    for cell, value in _corners(design.spec):
        try:
            scenario_of(design, cell, value, window)
        except UsageFailed as error:
            errors |= dict.fromkeys(error.lines[1:])
    return list(errors)


def _corners(spec: SweepSpec) -> Iterator[tuple[int, float | None]]:
    axis = spec.searched
    ends = (None,) if axis is None else (axis.low, axis.high)
    for cell in range(len(spec.cells)):
        for end in ends:
            yield cell, end


def scenario_of(design: Design, cell: int, value: float | None, window: float) -> Scenario:
    """Raises UsageFailed."""
    options = design.options
    overrides = (*target_overrides(options), *design.overrides(cell, value, window))
    scenario = prepare.load_scenario(Path(options.scenario), overrides, virtual=options.virtual)
    return replace(scenario, seed=design.spec.seeds[0])


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words: which fixed things of a sweep are not what they were."""
    changed = [name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name)]
    return [f"  {name}: {was.get(name)} -> {now.get(name)}" for name in changed]
