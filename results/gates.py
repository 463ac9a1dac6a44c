"""The language of gates (MEASUREMENT 9): parsed and checked before any load, decided after it.

gate   := [scope "."] metric ["." stat] ["during" (fault id | steady)] ["regression"] op bound
scope  := class or all, then optionally {dim=value, ..}; or a counter group
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from results.counters import COUNTERS
from results.judging import ClassGoal, Judging
from results.metrics import METRICS, Kind
from results.outcomes import GROUPS
from results.record import Outcome
from results.slices import DIMS, parse_bucket
from results.stats.distribution import STATISTIC, quantile_of
from results.stats.quantiles import samples_needed, supported

STEADY = "steady"
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
OUTCOMES = tuple(o.value for o in Outcome) + tuple(g for g in GROUPS if g not in set(Outcome))
"""Outcome classes and groups: each has ``count`` (default) and ``share``."""

_UNITS: dict[Kind, dict[str, float]] = {
    Kind.LATENCY: {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0},
    Kind.RATE: {"/s": 1.0, "/m": 1 / 60},
    Kind.RATIO: {"%": 0.01, "": 1.0},
    Kind.COUNT: {"": 1.0},
}
_UNITS[Kind.LAG] = _UNITS[Kind.LATENCY]
_UNITS[Kind.FACTOR] = _UNITS[Kind.AMOUNT] = _UNITS[Kind.COUNT]

_GATE = re.compile(
    r"\s*(?P<subject>[^\s<>=!{]+(?:\{[^}]*\}[^\s<>=!]*)?)"
    r"(?:\s+during\s+(?P<during>[^\s<>=!]+))?"
    r"(?:\s+(?P<regression>regression))?"
    r"\s*(?P<op><=|>=|==|!=|<|>)"
    r"\s*(?P<number>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(?P<unit>[^\s\d]*)\s*"
)


class GateError(ValueError):
    """A gate that cannot mean anything; the message says what and, where near, what was meant."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One parsed gate. ``bound`` is in s, 1/s, a ratio or a count, by ``kind``."""

    text: str
    metric: str
    kind: Kind
    op: str
    bound: float
    scope: str | None = None
    """A class; None = all."""
    group: str | None = None
    """A counter group instead of a class."""
    where: tuple[tuple[str, str], ...] = ()
    stat: str | None = None
    during: str | None = None
    regression: bool = False

    @property
    def is_outcome(self) -> bool:
        return self.group is None and self.metric in OUTCOMES

    @property
    def needs_client(self) -> bool:
        """Whether an invalid client makes it undecidable: latencies, rates, goodput (MEASUREMENT 8)."""
        timed = self.kind in (Kind.LATENCY, Kind.RATE, Kind.FACTOR, Kind.AMOUNT) and self.group is None
        return timed or self.metric in ("attainment", "attainment_strict", "completed_share")

    def meets(self, value: float) -> bool:
        return OPERATORS[self.op](value, self.bound)


def near(word: str, known: Collection[str]) -> str:
    """`` (did you mean ..?)`` or nothing."""
    found = get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def parse_gate(
    text: str, classes: Collection[str] | None = None, faults: Collection[str] | None = None
) -> Gate:
    """Parse and check one gate. Where ``classes`` or ``faults`` are given, its scope and ``during`` must
    be among them. Raises GateError."""
    match = _GATE.fullmatch(text)
    if match is None:
        raise GateError(f"gate {text!r}: {_what_is_wrong(text)}")
    try:
        return _checked(text.strip(), match, classes, faults)
    except GateError as error:
        raise GateError(f"gate {text!r}: {error}") from None


def _what_is_wrong(text: str) -> str:
    if not re.search(r"[<>]|[=!]=", text):
        return "no comparison in it; write metric, one of < <= > >= == !=, and a bound"
    left, _, right = re.split(r"(<=|>=|==|!=|<|>)", text, maxsplit=1)
    if not re.fullmatch(r"\s*[-+]?\d+(\.\d+)?([eE][-+]?\d+)?\s*[^\s\d]*\s*", right):
        return f"the bound {right.strip()!r} is not a number with a unit, such as 800ms, 99%, 3/s or 0"
    words = left.split()
    extra = [w for w in words[1:] if w not in ("during", "regression")]
    if len(words) > 1 and words[1] not in ("during", "regression"):
        return f"{words[1]!r} is not understood here{near(words[1], ('during', 'regression'))}"
    return f"{' '.join(extra) or left.strip()!r} is not understood"


def _checked(
    text: str, match: re.Match[str], classes: Collection[str] | None, faults: Collection[str] | None
) -> Gate:
    scope, where, names = _split(match["subject"], classes)
    during, regression = match["during"], match["regression"] is not None
    if during and faults is not None and during not in (*faults, STEADY):
        raise GateError(f"no fault {during!r}{near(during, (*faults, STEADY))}")
    if scope in COUNTERS and (classes is None or scope not in classes):
        metric, kind, stat = ".".join(names), _counter_kind(scope, names), None
        if where:
            raise GateError(f"the counter group {scope!r} has no slices")
        if during and scope != "recovery":
            raise GateError(f"the counter group {scope!r} counts the whole run; leave out 'during {during}'")
        group, scope = scope, None
    else:
        group = None
        metric, stat, kind = _metric(names)
        if scope not in (None, "all") and classes is not None and scope not in classes:
            raise GateError(f"no class {scope!r}{near(str(scope), (*classes, 'all', *COUNTERS))}")
        scope = None if scope == "all" else scope
        if metric in METRICS and METRICS[metric].of_window and (scope or where or during):
            raise GateError(f"{metric} is of the whole window: the classes share the replicas")
    bound = _bound(match["number"], match["unit"], kind, stat, regression)
    return Gate(text, metric, kind, match["op"], bound, scope, group, where, stat, during, regression)


def _split(
    subject: str, classes: Collection[str] | None
) -> tuple[str | None, tuple[tuple[str, str], ...], list[str]]:
    """(scope, slices, rest). Without braces the first part is a scope unless it is a metric's name."""
    head, brace, tail = subject.partition("{")
    if brace:
        inside, _, rest = tail.partition("}")
        if not rest.startswith("."):
            raise GateError("after {..} comes '.' and a metric")
        return head, _slices(inside), _parts(rest[1:])
    parts = _parts(subject)
    known = set(METRICS) | set(OUTCOMES)
    is_class = classes is not None and parts[0] in classes and len(parts) > 1
    if is_class or (parts[0] not in known and len(parts) > 1 and not STATISTIC.fullmatch(parts[1])):
        return parts[0], (), parts[1:]
    return None, (), parts


def _parts(dotted: str) -> list[str]:
    """Split at dots, but not in ``p99.9``."""
    parts = re.split(r"\.(?!\d+$)", dotted)
    if not all(parts):
        raise GateError(f"{dotted!r} has an empty part")
    return parts


def _slices(inside: str) -> tuple[tuple[str, str], ...]:
    found = []
    for item in inside.split(","):
        dim, equals, value = (p.strip() for p in item.partition("="))
        if not equals or not value:
            raise GateError(f"{{{inside}}}: write dim=value, ..")
        if dim not in DIMS:
            raise GateError(f"no dimension {dim!r}{near(dim, DIMS)}; known: {', '.join(DIMS)}")
        if dim in ("in", "out") and value != "unknown" and parse_bucket(value) is None:
            raise GateError(f"{dim}={value}: write a bucket such as 1k-4k")
        found.append((dim, value))
    return tuple(found)


def _metric(names: list[str]) -> tuple[str, str | None, Kind]:
    metric, rest = names[0], names[1:]
    if metric in OUTCOMES:
        stat = rest[0] if rest else "count"
        if len(rest) > 1 or stat not in ("count", "share"):
            raise GateError(f"{metric} has count and share, not {'.'.join(rest)!r}")
        return metric, stat, Kind.COUNT if stat == "count" else Kind.RATIO
    if metric not in METRICS:
        raise GateError(f"no metric {metric!r}{near(metric, (*METRICS, *OUTCOMES))}")
    found = METRICS[metric]
    if found.samples is None:
        if metric == "goodput" and rest == ["rate"]:
            return "attainment", None, Kind.RATIO
        if rest:
            raise GateError(f"{metric} is one number; leave out {'.'.join(rest)!r}")
        return metric, None, found.kind
    if not rest:
        raise GateError(f"{metric} needs a statistic, such as {metric}.p90 or {metric}.mean")
    if len(rest) > 1 or not STATISTIC.fullmatch(rest[0]) or rest[0] == "share":
        raise GateError(f"no statistic {'.'.join(rest)!r}; known: pNN, mean, min, max, count")
    if quantile_of(rest[0]) == 0.0:
        raise GateError("p0 is no quantile; use min")
    return metric, rest[0], Kind.COUNT if rest[0] == "count" else found.kind


def _counter_kind(group: str, names: list[str]) -> Kind:
    name = ".".join(names)
    if name not in COUNTERS[group]:
        known = COUNTERS[group]
        raise GateError(f"no counter {name!r} in {group!r}{near(name, known)}; known: {', '.join(known)}")
    return COUNTERS[group][name]


def _bound(number: str, unit: str, kind: Kind, stat: str | None, regression: bool) -> float:
    units = {"%": 0.01} if regression else _UNITS[kind]
    if unit not in units:
        wanted = ", ".join(repr(u) if u else "no unit" for u in units)
        raise GateError(
            f"the bound {number}{unit} {'needs a unit' if not unit else 'has a wrong unit'}: {wanted}"
        )
    bound = float(number) * units[unit]
    if not math.isfinite(bound):
        raise GateError(f"the bound {number}{unit} is beyond all numbers")
    return bound


def parse_gates(judging: Judging, faults: Collection[str] | None = None) -> list[Gate]:
    """All gates of a run that was checked before; raises GateError at the first bad one."""
    return [parse_gate(text, tuple(judging.classes), faults) for text in judging.gates]


SEND_CLOCK = ("ttft", "ttfo", "e2e", "slowdown")
"""Latencies that begin with the send; the others of this name and ``_sched`` begin when it was due."""


def wrong_clock(gate: Gate, classes: Mapping[str, ClassGoal]) -> str | None:
    """Why the gate's clock cannot tell what it is asked of its classes; None if it can."""
    goals = classes if gate.scope is None else {n: g for n, g in classes.items() if n == gate.scope}
    return None if gate.group is not None else blind_to(gate.metric, goals)


def blind_to(metric: str, goals: Mapping[str, ClassGoal]) -> str | None:
    """Why a metric cannot tell how such classes are served, if it cannot.

    A closed loop is due whenever the answer before came, so only its send clock means anything; behind a
    declared cap the wait for the cap is before the send, so only the schedule clock does (C17).
    """
    if metric.endswith("_sched") and goals and not any(goal.open_loop for goal in goals.values()):
        return f"{metric} says nothing of a closed loop; use {metric.removesuffix('_sched')}"
    capped = [name for name, goal in goals.items() if goal.cap is not None and goal.open_loop]
    if metric in SEND_CLOCK and capped:
        use = "" if metric == "slowdown" else f"; use {metric}_sched"
        return f"{metric} leaves out the wait for the cap of class {', '.join(capped)}{use}"
    return None


def planned_warnings(gates: Collection[Gate], planned: dict[str, int]) -> list[str]:
    """Quantile gates whose class will have too few requests (MEASUREMENT C33), with the n needed.
    Pooled metrics have many samples a request and are left out."""
    warnings = []
    for gate in gates:
        q = quantile_of(gate.stat) if gate.stat else None
        if q is None or METRICS[gate.metric].pooled:
            continue
        n = planned.get(gate.scope, 0) if gate.scope else sum(planned.values())
        if not supported(n, q):
            warnings.append(
                f"gate {gate.text!r}: {gate.stat} needs {samples_needed(q)} requests, {n} are planned"
            )
    return warnings
