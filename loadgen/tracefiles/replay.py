"""The replay rules: from what a trace held to what is sent when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loadgen.streams import stream
from loadgen.tracefiles.errors import MOST_TOO_LONG, Findings
from loadgen.tracefiles.fields import MOST_SECONDS, NS
from loadgen.tracefiles.recording import Integers, Lengths, Recording, Session, Singles
from loadgen.tracefiles.times import quantum, spread
from loadgen.workload.sessions import MOST_REQUESTS

Over = Literal["refuse", "drop", "cut"]
_WAYS = "over: drop or over: cut"


@dataclass(frozen=True, slots=True)
class Rules:
    """What is made of a recording. Times in ns; ``spread`` None = by the quantum of the trace's times."""

    seed: int = 0
    thin: float | None = None
    compress: float = 1.0
    limit: int | None = None
    start_at: int = 0
    spread: int | None = None
    max_input: int | None = None
    max_output: int | None = None
    over: Over = "refuse"

    def too_long(self, given: Any, asked: Any) -> Any:
        """Whether lengths are above the limits; of a request, or of columns of them."""
        most_in = np.inf if self.max_input is None else self.max_input
        most_out = np.inf if self.max_output is None else self.max_output
        return (given > most_in) | (asked > most_out)

    def width(self, step: int) -> int:
        """What equal times are spread over, where times were rounded to ``step``."""
        return step if self.spread is None else self.spread

    def due(self, times: Integers) -> Integers:
        """Times of the trace as times since the start of the load."""
        return np.rint((times - self.start_at) / self.compress).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Replay:
    """Which sessions are played, and when. ``due`` are ns since the start of the load, sorted; None where
    the trace has no times."""

    recording: Recording
    rules: Rules
    order: Integers
    due: Integers | None
    may: Integers
    """Every session that some seed could choose, and its earliest time due: what is refused does not depend
    on the seed, which may only be drawn later."""
    may_be_due: Integers | None
    facts: Mapping[str, Any]

    @staticmethod
    def of(recording: Recording, rules: Rules) -> Replay:
        """Raises TraceError for what is too long, ValueError if nothing is left."""
        lengths, starts = recording.lengths(), recording.starts
        could = _could(recording, rules, lengths)
        may = np.flatnonzero(could)[: None if rules.thin is not None else rules.limit]
        if len(may) == 0:
            raise ValueError("nothing of the trace is left: see start_at and max_input")
        _refuse_long(recording, rules, lengths, may)
        _refuse_many(recording, rules, may)
        step = 0 if starts is None else quantum(starts)
        _refuse_far(recording, rules, may, step)
        order = np.flatnonzero(could & _drawn(recording, rules, could))[: rules.limit]
        facts = _left_out(recording, rules, lengths, order) | _scaling(rules, len(order))
        if starts is None:
            return Replay(recording, rules, order, None, may, None, facts)
        moved, said = _spread(recording.digest, starts, step, rules)
        due, earliest = rules.due(moved[order]), rules.due(starts[may])
        return Replay(recording, rules, order, due, may, earliest, facts | said)

    def at(self, index: int) -> tuple[int, int]:
        """Session and round of the ``index``-th arrival: a trace without times is played again and again."""
        rounds, place = divmod(index, len(self.order))
        return int(self.order[place]), rounds

    def due_within(self, span: float) -> Integers:
        assert self.due is not None, "asked only of traces with times"
        inside: Integers = self.due[self.due < round(span * 1e9)]
        return inside

    def may_be_due_within(self, span: float) -> Integers:
        assert self.may_be_due is not None, "asked only of traces with times"
        inside: Integers = self.may[self.may_be_due < round(span * 1e9)]
        return inside

    def kept(self, session: int) -> list[int]:
        """The requests of a session that are sent, by index."""
        return _sent(self.recording.sessions[session], self.rules)

    def lengths(self, sessions: Integers) -> Lengths:
        """Of the requests of ``sessions``, as they are sent."""
        every, rules = self.recording.lengths(), self.rules
        rows = np.isin(every.session, sessions)
        if rules.over == "drop":
            rows &= ~rules.too_long(every.input, every.output)
        most_in = rules.max_input if rules.over == "cut" else None
        most_out = rules.max_output if rules.over == "cut" else None
        return Lengths(
            every.session[rows],
            every.line[rows],
            every.input[rows] if most_in is None else np.minimum(every.input[rows], most_in),
            every.output[rows] if most_out is None else np.minimum(every.output[rows], most_out),
        )


def _sent(requests: Session, rules: Rules) -> list[int]:
    """What is not dropped: for its length, or for lack of a live answer that it needs."""
    if rules.over != "drop":
        return list(range(len(requests)))
    kept: set[int] = set()
    for k, request in enumerate(requests):
        needs = {part.answer_of for part in request.parts if part.answer_of is not None}
        if needs <= kept and not rules.too_long(request.input, request.output):
            kept.add(k)
    return sorted(kept)


def _could(recording: Recording, rules: Rules, lengths: Lengths) -> Any:
    """Which sessions any seed could choose: from ``start_at`` on, and not dropped whole."""
    could = np.ones(len(recording.sessions), dtype=np.bool_)
    if recording.starts is not None:
        could &= recording.starts >= rules.start_at
    if rules.over == "drop" and isinstance(recording.sessions, Singles):
        could &= ~rules.too_long(lengths.input, lengths.output)
    elif rules.over == "drop":
        could &= np.array([bool(_sent(one, rules)) for one in recording.sessions], dtype=np.bool_)
    return could


def _drawn(recording: Recording, rules: Rules, could: Any) -> Any:
    """The seeded share of the sessions; one of those that could be chosen at least."""
    n = len(could)
    if rules.thin is None:
        return np.ones(n, dtype=np.bool_)
    drawn = stream(rules.seed, "trace", recording.digest, "thin").random(n)
    return drawn <= max(rules.thin, float(drawn[could].min()))


def _left_out(recording: Recording, rules: Rules, lengths: Lengths, order: Integers) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if recording.starts is not None and rules.start_at:
        found["before_start_at"] = int((recording.starts < rules.start_at).sum())
    if rules.over != "refuse":
        long = rules.too_long(lengths.input, lengths.output)
        if rules.over == "cut":
            long &= np.isin(lengths.session, order)
        found["cut" if rules.over == "cut" else "dropped"] = int(long.sum())
    return found


def _spread(digest: str, starts: Integers, step: int, rules: Rules) -> tuple[Integers, dict[str, Any]]:
    width = rules.width(step)
    moved, count = spread(starts, width, stream(rules.seed, "trace", digest, "spread"))
    return moved, {
        "trace_s": float(starts[-1]) / 1e9,
        "quantum_s": step / 1e9,
        "spread_s": width / 1e9,
        "spread_requests": count,
    }


def _refuse_long(recording: Recording, rules: Rules, lengths: Lengths, may: Integers) -> None:
    if rules.over != "refuse" or (rules.max_input is None and rules.max_output is None):
        return
    found = Findings(MOST_TOO_LONG)
    played = np.isin(lengths.session, may)
    for row in np.flatnonzero(rules.too_long(lengths.input, lengths.output) & played):
        for key, n, most in (
            ("max_input", lengths.input[row], rules.max_input),
            ("max_output", lengths.output[row], rules.max_output),
        ):
            if most is not None and n > most:
                session = int(lengths.session[row])
                ways = "over: drop" if key == "max_input" and recording.has_texts(session) else _WAYS
                what = f"{n:,} tokens are above {key} {most:,}: raise it, or say {ways}"
                found.add(recording.file_of(session), int(lengths.line[row]), what)
    found.refuse()


def _refuse_many(recording: Recording, rules: Rules, may: Integers) -> None:
    """A session, and each of its sub-agents, has as many requests as records can number."""
    if isinstance(recording.sessions, Singles):
        return
    found = Findings(MOST_TOO_LONG)
    for index in may.tolist():
        requests, counts = recording.sessions[index], Counter[int]()
        for k in _sent(requests, rules) if len(requests) > MOST_REQUESTS else ():
            counts[requests[k].lineage] += 1
            if counts[requests[k].lineage] == MOST_REQUESTS + 1:
                what = f"its session has more than {MOST_REQUESTS:,} requests from here on: split the session"
                found.add(recording.file_of(index), requests[k].line, what)
    found.refuse()


def _refuse_far(recording: Recording, rules: Rules, may: Integers, step: int) -> None:
    """Every time, of waiting too, fits into ns of 64 bits when `compress` has made it longer."""
    last, starts = _longest_wait(recording, may), recording.starts
    if starts is not None:
        last = max(last, int(starts[may[-1]]) + rules.width(step) - rules.start_at)
    if (s := last / rules.compress / NS) > MOST_SECONDS:
        what = f"with compress {rules.compress:g} the trace lasts {s:.3g} s, and no load more than"
        raise ValueError(f"{what} {MOST_SECONDS:,} s: raise compress, or set limit")


def _longest_wait(recording: Recording, may: Integers) -> int:
    """The think times of a session, all together."""
    if isinstance(recording.sessions, Singles):
        return 0
    return max(sum(request.think_ns or 0 for request in recording.sessions[i]) for i in may.tolist())


def _scaling(rules: Rules, kept: int) -> dict[str, Any]:
    said: dict[str, Any] = {"seed": rules.seed, "kept_sessions": kept}
    for key in ("thin", "limit", "max_input", "max_output"):
        if (value := getattr(rules, key)) is not None:
            said[key] = value
    if rules.max_input is not None or rules.max_output is not None:
        said["over"] = rules.over
    if rules.compress != 1:
        said["compress"] = rules.compress
    if rules.start_at:
        said["start_at_s"] = rules.start_at / 1e9
    return said
