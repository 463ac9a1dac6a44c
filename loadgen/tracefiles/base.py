"""A trace as a scenario names it: settings, and behind them what the file held."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from loadgen.plan import Arrival, ClosedLoop, Opening, Part, Seconds, Share, Turn, Workload
from loadgen.tracefiles.errors import MOST_TOO_LONG, Findings, Located
from loadgen.tracefiles.fields import MOST_SECONDS
from loadgen.tracefiles.opening import opened
from loadgen.tracefiles.reach import most_sessions
from loadgen.tracefiles.recording import Integers, Recording, Request, Session, leading
from loadgen.tracefiles.replay import Over, Replay, Rules
from loadgen.tracefiles.words import sentences
from loadgen.workload.lengths import lengths

_LEAST_COMPRESS, _MOST_COMPRESS = 1e-6, 1e6
_NS = 1_000_000_000

Misfit = Callable[[int, int], Iterable[str]]
"""What is wrong with a prompt and an answer of so many tokens."""


class Trace(Arrival, Workload, Protocol):
    """A recorded load: when sessions start and what they send (loadgen.tracefiles)."""

    @property
    def arrives(self) -> Arrival:
        """What decides when sessions start: the trace itself, or what it was given."""

    def facts(self, span: float) -> dict[str, Any]:
        """What was read and how it is replayed in ``span`` s, for the manifest and the report."""

    def seeded(self, seed: int) -> Trace:
        """The same with the seed of the run, unless it has one of its own."""

    def misfits(self, span: float, misfit: Misfit) -> list[Located]:
        """The requests of ``span`` s whose lengths ``misfit`` has something to say about, and where they
        stand in the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile(ABC):
    """What all formats have in common. The file is read, all of it, when the object is made.

    Raises ValueError for settings that make no sense and files that are not there, TraceError (which is
    one) with every broken line.
    """

    file: str
    thin: Share | None = None
    compress: float = 1.0
    limit: int | None = None
    max_input: int | None = None
    max_output: int | None = None
    over: Over = "refuse"
    seed: int | None = None
    replay: Annotated[Replay, "not a key"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self)
        rules = self.rules()
        recording = opened(self.file, (type(self), *self.reading()), self.read)
        object.__setattr__(self, "replay", Replay.of(recording, rules))

    # --- what a format says

    @abstractmethod
    def read(self, path: Path) -> Recording:
        """Read the file. Raises TraceError with everything that is wrong in it."""

    def reading(self) -> tuple[Any, ...]:
        """The settings that `read` depends on."""
        return ()

    def prompt(self, request: Request, at: Place) -> tuple[Part, ...]:
        """Of a trace that knows lengths only: text that no other prompt has."""
        return (Part("user", request.input, f"{at.opening.key}/u{at.opening.index}.{at.index}"),)

    def rules(self) -> Rules:
        return Rules(
            seed=self.seed or 0,
            thin=self.thin,
            compress=self.compress,
            limit=self.limit,
            max_input=self.max_input,
            max_output=self.max_output,
            over=self.over,
        )

    # --- what the plan asks

    @abstractmethod
    def due_times(self, span: float, rng: np.random.Generator) -> NDArray[np.int64]: ...

    @abstractmethod
    def expected(self, span: float) -> float: ...

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        index, rounds = self.replay.at(opening.index)
        requests, kept = self.replay.recording.sessions[index], self.replay.kept(index)
        turn_of = {k: turn for turn, k in enumerate(kept)}
        return tuple(
            self._turn(requests, k, turn_of, Place(index, rounds, opening, turn_of[k])) for k in kept
        )

    def _turn(self, requests: Session, k: int, turn_of: dict[int, int], at: Place) -> Turn:
        request = self._cut(requests[k])
        parent, think = _before(requests, k, turn_of)
        return Turn(
            prompt=tuple(self._live(part, turn_of, at) for part in self.prompt(request, at)),
            n_out=request.output,
            after_ns=None if think is None else round(think / self.compress),
            parent=parent,
            branch=request.branch,
            lineage=request.lineage,
            adapter=request.adapter,
        )

    def _cut(self, request: Request) -> Request:
        if self.over != "cut":
            return request
        given = min(request.input, self.max_input or request.input)
        asked = min(request.output, self.max_output or request.output)
        return replace(request, input=given, output=asked)

    def _live(self, part: Part, turn_of: dict[int, int], at: Place) -> Part:
        if part.answer_of is None:
            return part
        return replace(part, answer_of=at.opening.first_id + turn_of[part.answer_of])

    def facts(self, span: float) -> dict[str, Any]:
        """What was read and how it is replayed in ``span`` s; JSON."""
        recording = self.replay.recording
        facts = {
            "file": recording.file,
            "digest": recording.digest,
            "sessions": len(recording.sessions),
            **recording.facts,
            **self.replay.facts,
            **self._planned(span),
        }
        return facts | {"says": sentences(facts)}

    def seeded(self, seed: int) -> Self:
        return self if self.seed is not None else replace(self, seed=seed)

    def misfits(self, span: float, misfit: Misfit) -> list[Located]:
        recording, found = self.replay.recording, Findings(MOST_TOO_LONG)
        lengths = self.replay.lengths(self._may_come(span))
        columns = (lengths.session, lengths.line, lengths.input, lengths.output)
        for session, line, given, asked in zip(*(column.tolist() for column in columns), strict=True):
            for what in misfit(given, asked):
                found.add(recording.file_of(session), line, what)
        return found.all()

    @abstractmethod
    def _may_come(self, span: float) -> Integers:
        """The sessions that some seed could play in ``span`` s."""

    @abstractmethod
    def _planned(self, span: float) -> dict[str, Any]:
        """How much of the trace falls into ``span`` s."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request is replayed: session and round of the recording, and the turn's number."""

    session: int
    round: int
    opening: Opening
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(TraceFile):
    """A trace with times of arrival; its first request is at 0."""

    spread: Seconds | None = None
    start_at: Seconds = 0.0

    def rules(self) -> Rules:
        for key, seconds in (("spread", self.spread or 0.0), ("start_at", self.start_at)):
            if not 0 <= seconds <= MOST_SECONDS:
                raise ValueError(f"{key} must be 0 s to {MOST_SECONDS:,} s, not {seconds:g} s")
        width = None if self.spread is None else round(self.spread * _NS)
        return replace(TraceFile.rules(self), spread=width, start_at=round(self.start_at * _NS))

    @property
    def arrives(self) -> Arrival:
        return self

    def due_times(self, span: float, rng: np.random.Generator) -> NDArray[np.int64]:
        return self.replay.due_within(span)

    def expected(self, span: float) -> float:
        return float(len(self.replay.due_within(span)))

    def _may_come(self, span: float) -> Integers:
        return self.replay.may_be_due_within(span)

    def _planned(self, span: float) -> dict[str, Any]:
        planned, due = len(self.replay.due_within(span)), self.replay.due
        assert due is not None, "a timed trace"
        return {
            "planned_sessions": planned,
            "planned_requests": len(self.replay.lengths(self.replay.order[:planned]).line),
            "beyond_end_sessions": len(due) - planned,
            "last_due_s": float(due[-1]) / _NS,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Untimed(TraceFile):
    """A trace without times of arrival: ``arrival`` gives them. Its sessions are taken in order, and from
    the beginning again when all were played."""

    arrival: Arrival

    @property
    def arrives(self) -> Arrival:
        return self.arrival

    def due_times(self, span: float, rng: np.random.Generator) -> NDArray[np.int64]:
        if isinstance(self.arrival, ClosedLoop):
            raise ValueError("a closed loop is planned from `arrives`, not from the trace")
        return self.arrival.due_times(span, rng)

    def expected(self, span: float) -> float:
        return self.arrival.expected(span)

    def _may_come(self, span: float) -> Integers:
        return self.replay.may[: most_sessions(self.arrival, span) if self.thin is None else None]

    def _planned(self, span: float) -> dict[str, Any]:
        expected, n = self.arrival.expected(span), len(self.replay.order)
        return {"expected_sessions": expected, "expected_rounds": expected / n}


def blocks_of(request: Request, size: int) -> tuple[tuple[int, int], ...]:
    """Its block ids, no more than its input needs."""
    return leading(request.blocks, -(-request.input // size))


def _before(requests: Session, k: int, turn_of: dict[int, int]) -> tuple[int | None, int | None]:
    """The turn that request ``k`` follows and its think time: over dropped ones back to one that is sent."""
    parent, think = requests[k].parent, requests[k].think_ns
    while parent is not None and parent not in turn_of:
        think = (think or 0) + (requests[parent].think_ns or 0)
        parent = requests[parent].parent
    if parent is None:
        return (None, None) if turn_of[k] == 0 else (0, think or 0)
    return turn_of[parent], think


def _check(trace: TraceFile) -> None:
    if trace.thin is not None and not 0 < trace.thin <= 1:
        raise ValueError(f"thin keeps a share above 0%, not {trace.thin:g}")
    if not _LEAST_COMPRESS <= trace.compress <= _MOST_COMPRESS:
        raise ValueError(f"compress divides times: it is 1e-6 to 1e6, not {trace.compress:g}")
    if trace.limit is not None and trace.limit < 1:
        raise ValueError(f"limit must be at least 1, not {trace.limit}")
    if trace.seed is not None and not 0 <= trace.seed < 2**63:
        raise ValueError("seed must be 0 or more, and below 2^63")
    lengths(**{key: n for key in ("max_input", "max_output") if (n := getattr(trace, key)) is not None})
    if trace.over != "refuse" and trace.max_input is None and trace.max_output is None:
        raise ValueError(f"over: {trace.over} needs max_input or max_output: over what?")
