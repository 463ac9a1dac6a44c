"""What one run says of its point: pass, fail, client, or run longer (MEASUREMENT C36)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from results.counters import COUNTERS
from results.deciding import FAIL, PASS
from results.gates import GateError, parse_gate
from results.report import words
from results.sweep.search import Verdict

DEFAULT_OBJECTIVE = "attainment >= 90%"
"""For a scenario that has objectives of requests (slo) and no gates."""
NOT_THE_TARGET = "the client, not the target"


class Decision(StrEnum):
    """Of one run. The last three of a verdict's names, and ``longer``: a longer window may tell."""

    PASS = "pass"
    FAIL = "fail"
    LONGER = "longer"
    UNDECIDED = "inconclusive"
    CLIENT = "client"

    @property
    def verdict(self) -> Verdict | None:
        """None while the point is to be run on."""
        return None if self is Decision.LONGER else Verdict(self.value)


@dataclass(frozen=True, slots=True)
class Decided:
    """``why``: what it rests on, one line for each objective that is not simply met."""

    decision: Decision
    why: tuple[str, ...]
    set_aside: tuple[str, ...] = ()
    """Objectives that this target cannot be asked for, with the reason."""


def objectives(gates: Sequence[str], has_slo: bool, classes: Sequence[str]) -> tuple[list[str], list[str]]:
    """(objectives, gates that no point can decide). Without a gate that can be judged, the default stands
    in, if there is any SLO for it to be about."""
    wanted = [text for text in gates if not _needs_baseline(text, classes)]
    unjudged = [text for text in gates if text not in wanted]
    return wanted or ([DEFAULT_OBJECTIVE] if has_slo else []), unjudged


def _needs_baseline(text: str, classes: Sequence[str]) -> bool:
    try:
        return parse_gate(text, classes).regression
    except GateError:
        return False


def decide(summary: Mapping[str, Any], *, own_engine: bool, longest: bool) -> Decided:
    """``longest``: no longer window will follow, so what is open now stays so.

    Passes: every objective's whole interval is inside its bound, and the point is not over-saturated.
    Fails: one is wholly outside. A point that is over-saturated in the longest window fails too: what
    only grows holds no objective for long. A window under 30 s cannot tell saturation (C36); such a point
    may pass, and the sweep says that it was not tested.
    """
    client = summary["client"]
    if client["verdict"] == "invalid":
        rules = ", ".join(rule for rule, row in client["rows"].items() if row["state"] == "invalid")
        return Decided(Decision.CLIENT, (f"{NOT_THE_TARGET}: {rules} invalid",))
    lines, aside = _judged(summary, own_engine)
    classes = list(summary["classes"])
    outside = tuple(_outside(line, classes) for line in lines if line["verdict"] == FAIL)
    if outside:
        return Decided(Decision.FAIL, outside, aside)
    open_ = tuple(_why_open(line) for line in lines if line["verdict"] != PASS or line["marginal"])
    open_ += tuple(f"fault {fault['id']} was not played as scripted" for fault in _unplayed(summary))
    open_ += tuple(found["text"] for found in summary["findings"] if found["code"] == "idle_users")
    decision, why = _not_outside(summary, open_, longest)
    return Decided(decision, why, aside)


def _not_outside(
    summary: Mapping[str, Any], open_: tuple[str, ...], longest: bool
) -> tuple[Decision, tuple[str, ...]]:
    over, groups = summary["saturation"]["over"] is True, summary["all"]["groups"]
    tried = summary["all"]["planned"] - groups["cancelled"] - groups["excluded"]
    dead = tried > 0 and not groups["ok"]
    if not tried:
        open_ = (*open_, "no request was due in the window")
    if not (open_ or over or dead):
        return Decision.PASS, ()
    why = (*open_, *(("over-saturated",) if over else ()), *(("no request completed",) if dead else ()))
    if not longest:
        return Decision.LONGER, why
    if dead or (over and not open_):
        return Decision.FAIL, tuple(f"{what} in the longest window" for what in why[len(open_) :])
    return Decision.UNDECIDED, why


def _judged(summary: Mapping[str, Any], own_engine: bool) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """The gates that count here: not those on counters that a foreign target does not have."""
    lines: list[Mapping[str, Any]] = []
    aside: list[str] = []
    classes = tuple(summary["classes"])
    for line in summary["gates"]:
        if not own_engine and line["value"] is None and parse_gate(line["text"], classes).group in COUNTERS:
            aside.append(f"{line['text']}: {line['reason']}")
        else:
            lines.append(line)
    return lines, tuple(aside)


def _unplayed(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A point that holds only because a worker was not killed holds nothing."""
    return [fault for fault in summary["faults"] if fault.get("proven") is None or fault.get("error")]


def _outside(line: Mapping[str, Any], classes: list[str]) -> str:
    kind = words.kind_of_gate(line["text"], classes)
    shown = words.interval(line["interval"], kind)
    return f"{line['text']}: {words.quantity(line['value'], kind)}{f' ({shown})' if shown else ''}"


def _why_open(line: Mapping[str, Any]) -> str:
    if line["verdict"] == PASS:
        return f"{line['text']}: met, but its 95 % interval reaches the bound"
    return f"{line['text']}: {line['reason']}"
