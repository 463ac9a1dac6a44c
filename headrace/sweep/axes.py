"""From ``--axis KEY=..`` to overrides of the scenario (MEASUREMENT C46)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import combinations, product

from headrace.errors import UsageFailed
from headrace.sweep.levels import LevelError, Levels, read, read_rates, read_users
from loadgen.arrivals import ARRIVALS
from loadgen.arrivals.concurrency import Concurrency
from loadgen.load import ClosedLoop
from results.sweep.search import Space
from results.sweep.spec import AxisSpec
from scenarios.forms import keys, unit_of
from scenarios.schema import EngineTarget, LoadSpec, Scenario
from scenarios.units import UNITS

_OURS = {
    "seed": "a sweep sets the seeds itself; --seed chooses the first",
    "gates": "the gates are what a sweep judges by; change them with --set",
    "headrace": "the version of the file is no control",
    "phases.window": "a sweep sets the window itself; see --step-window and --longest-window",
}
"""Keys that no axis may write, nor what holds them: a sweep writes them after all axes."""

Setter = Callable[[str], tuple[str, ...]]
"""From a value as text (``4/s``, ``256``) to ``KEY=VALUE`` overrides."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One control: what it is varied over, and how a value is laid on the scenario."""

    spec: AxisSpec
    set: Setter

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def writes(self) -> tuple[str, ...]:
        """The scenario's keys that a value is laid on; they are the same for every value."""
        spec = self.spec
        value = spec.values[0] if spec.low is None else spec.text(spec.low)
        return tuple(line.partition("=")[0] for line in self.set(value))


class AxisError(ValueError):
    """An axis that cannot be varied; the message says why."""


def parse_axes(texts: Sequence[str], scenario: Scenario) -> tuple[Axis, ...]:
    """All axes. At most one is searched: of further spans the doublings are crossed, as if listed.

    Raises UsageFailed with every error at once.
    """
    axes: list[Axis] = []
    errors: list[str] = []
    for text in texts:
        try:
            axes.append(_axis(text, scenario))
        except (AxisError, LevelError) as error:
            errors.append(f"  --axis {text}: {error}")
    errors += dict.fromkeys(clash for pair in combinations(axes, 2) if (clash := _clash(*pair)) is not None)
    if not texts:
        errors.append("  nothing to vary: give --axis KEY=v1,v2 or --axis KEY=low:high, as chat.rate=1:64")
    if errors:
        raise UsageFailed("this sweep cannot be run:", *errors)
    return _one_searched(axes)


def _clash(one: Axis, other: Axis) -> str | None:
    """Of two axes that write the same thing only the later one would be varied."""
    if one.key == other.key:
        return f"  --axis {one.key}: given twice"
    for pair in product(one.writes, other.writes):
        if _meet(*pair):
            return (
                f"  --axis {one.key} and --axis {other.key} both set {max(pair, key=len)}, so that one of"
                " them would not be varied: leave one out"
            )
    return None


def _meet(one: str, other: str) -> bool:
    """One key holds the other, or they are the same: ``engine`` and ``engine.model``."""
    return all(mine == its for mine, its in zip(_steps(one), _steps(other), strict=False))


def _steps(key: str) -> list[str]:
    """``load.00`` is ``load.0``."""
    return [str(int(step)) if step.isdecimal() else step for step in key.strip().split(".")]


def _one_searched(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    searched = next((axis for axis in axes if axis.spec.searched), None)
    return tuple(axis if axis is searched else _listed(axis) for axis in axes)


def _listed(axis: Axis) -> Axis:
    spec = axis.spec
    if not spec.searched or spec.low is None or spec.high is None:
        return axis
    rungs = Space(spec.low, spec.high, spec.whole).ladder()
    values = tuple(spec.text(value) for value in rungs)
    return Axis(AxisSpec(spec.key, spec.unit, values, scaled=spec.scaled), axis.set)


def _axis(text: str, scenario: Scenario) -> Axis:
    key, equals, levels = (part.strip() for part in text.partition("="))
    if not equals or not key or not levels:
        raise AxisError("write KEY=v1,v2 or KEY=low:high")
    head, _, rest = key.partition(".")
    if head in scenario.classes and rest in ("rate", "concurrency"):
        of_class = [(i, load) for i, load in enumerate(scenario.load) if load.class_ == head]
        return _rate(key, levels, of_class) if rest == "rate" else _users(key, levels, of_class)
    path = _path(key, scenario)
    return _made(key, read(levels), lambda value: (f"{path}={value}",))


def _made(key: str, found: Levels, setter: Setter, scaled: str = "") -> Axis:
    return Axis(AxisSpec(key, found.unit, found.values, found.low, found.high, found.whole, scaled), setter)


def _path(key: str, scenario: Scenario) -> str:
    """The scenario's key that is meant. Whether it exists below its first step, the loader tells."""
    head, _, rest = key.partition(".")
    if ours := next((name for name in _OURS if _meet(key, name)), None):
        holds = len(_steps(key)) < len(_steps(ours))
        raise AxisError(f"{_OURS[ours]}; name another key of {key}" if holds else _OURS[ours])
    if head == "engine":
        if not isinstance(scenario.target, EngineTarget):
            raise AxisError("the target is a URL: its engine cannot be set")
        if not rest:
            raise AxisError("name a key of the engine, such as engine.scheduler.prefill_chunk")
        return f"target.{key}"
    if head in scenario.classes:
        raise AxisError(
            f"of class {head} there is {head}.rate and {head}.concurrency; other keys: classes.{key}"
        )
    known = [f.name for f in fields(Scenario) if f.name not in ("name", "question", "virtual")]
    if head in known:
        return key
    names = [f"{name}.{what}" for name in scenario.classes for what in ("rate", "concurrency")]
    if rest in ("rate", "concurrency") and not get_close_matches(head, scenario.classes, n=1, cutoff=0.5):
        raise AxisError(f"no class {head!r}: there is {', '.join(scenario.classes)}")
    near = get_close_matches(key, [*names, *known, "engine"], n=1, cutoff=0.5)
    others = f"there is {', '.join(names)}, engine.KEY, or a scenario's key"
    meant = f"did you mean {near[0]!r}?" if near else others
    raise AxisError(f"no control {key!r} ({meant})")


def _users(key: str, levels: str, of_class: Sequence[tuple[int, LoadSpec]]) -> Axis:
    """Closed loop. A load that is not closed yet gets users that come back at once."""
    name = key.partition(".")[0]
    if len(of_class) != 1:
        raise AxisError(f"class {name} has {len(of_class)} loads; users can be shared out in one only")
    i, load = of_class[0]
    if load.trace is not None:
        raise AxisError(f"load.{i} of class {name} replays a trace, which comes when it says")
    at = f"load.{i}.arrival"
    if isinstance(load.arrival, Concurrency):
        return _made(key, read_users(levels), lambda value: (f"{at}.users={value}",))
    scaled = f"load.{i} becomes a closed loop: users send again as soon as they have their answer"
    return _made(
        key,
        read_users(levels),
        lambda value: (f"{at}={{type: concurrency, users: {value}, think: 0s}}",),
        scaled,
    )


def _rate(key: str, levels: str, of_class: Sequence[tuple[int, LoadSpec]]) -> Axis:
    """The rate at which sessions of a class start. Several loads, or an arrival with several rates, keep
    their proportions: the class as a whole comes at the value."""
    found = [(i, rate) for i, load in of_class for rate in _rates_of(i, load)]
    if len(found) == 1:
        (i, (name, _)) = found[0]
        return _made(key, read_rates(levels), lambda value: (f"load.{i}.arrival.{name}={value}",))
    whole = sum(max(rate for _, rate in _rates_of(i, load)) for i, load in of_class)

    def scale(text: str) -> tuple[str, ...]:
        factor = float(UNITS["1/s"].parse(text)) / whole
        return tuple(f"load.{i}.arrival.{name}={rate * factor!r}/s" for i, (name, rate) in found)

    paths = ", ".join(f"load.{i}.arrival.{name}" for i, (name, _) in found)
    scaled = f"{paths} are scaled together; the value is the sum over loads of the largest rate of each"
    return _made(key, read_rates(levels), scale, scaled)


def _rates_of(i: int, load: LoadSpec) -> list[tuple[str, float]]:
    """(key, 1/s) of every rate of a load's arrival. Raises AxisError if it has none."""
    if load.trace is not None:
        raise AxisError(
            f"load.{i} of class {load.class_} replays a trace; vary load.{i}.trace.compress,"
            f" load.{i}.trace.thin or, where it has one, load.{i}.trace.arrival.rate"
        )
    arrival = load.arrival
    given = [
        (key, getattr(arrival, f.name))
        for key, f, hint in keys(type(arrival))
        if unit_of(hint) is UNITS["1/s"]
    ]
    rates = [(key, float(rate)) for key, rate in given if rate is not None and rate > 0]
    if not rates:
        kind = next((name for name, cls in ARRIVALS.items() if isinstance(arrival, cls)), "arrival")
        other = f"{load.class_}.concurrency" if isinstance(arrival, ClosedLoop) else f"load.{i}.arrival.KEY"
        raise AxisError(f"load.{i} of class {load.class_} comes by {kind!r}, which has no rate; vary {other}")
    return rates
