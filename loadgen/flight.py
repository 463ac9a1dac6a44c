"""One attempt in the air: what was seen of it, and what may end it early."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loadgen.agenda import Entry, cross_out
from loadgen.endwatch import NEVER, EndWatch, Habit, token_in
from loadgen.http1 import Head
from loadgen.lane import Lane, make_lane
from loadgen.line import Line
from loadgen.outcomes import Cut, Limit, is_answer
from loadgen.plan import Shot
from loadgen.raw import Closed, Raw
from loadgen.rules import Timeouts
from loadgen.targets.base import Dialect
from loadgen.timeline import Timeline
from loadgen.transport import Ending

_GONE = Raw()


class Flight:
    """The Sink that a transport talks to. ``due``, ``dequeued`` and ``start`` in ns on the clock.

    ``ended(flight, t)`` is called when the answer is over, ``reached(flight, t)`` at the token at which the
    plan hangs up. Only for such a planned hang-up is a stream understood while it comes in.
    """

    __slots__ = (
        "_cancel_at",
        "_dialect",
        "_ended",
        "_expected",
        "_habit",
        "_lane",
        "_lane_of",
        "_line",
        "_peek",
        "_progress",
        "_reached",
        "_watch",
        "abort",
        "attempt",
        "cap_wait",
        "dequeued",
        "disconnected",
        "due",
        "over",
        "raw",
        "shot",
        "start",
        "streamed",
        "timer",
    )

    def __init__(
        self,
        shot: Shot,
        attempt: int,
        times: tuple[int, int, int],
        dialect: Dialect,
        habit: Habit,
        streamed: bool,
        ended: Callable[[Flight, int], None],
        reached: Callable[[Flight, int], None],
    ) -> None:
        self.shot, self.attempt, self.streamed = shot, attempt, streamed
        self.due, self.dequeued, self.start = times
        self.cap_wait = 0
        self.raw = Raw()
        self.over = False
        self.disconnected = False
        self.abort: Callable[[], None] = _nothing
        self.timer: Entry | None = None
        """What is to be done about it next, if nothing happens; or it waits in a line."""
        self._line: Line[Flight] | None = None
        self._dialect, self._habit = dialect, habit
        self._ended, self._reached = ended, reached
        self._progress: int | None = None
        self._watch: EndWatch | None = None
        self._lane: Lane | None = None
        self._lane_of = b""
        self._expected: Head | None = None
        cancel = shot.cancel
        self._cancel_at = cancel.at if cancel is not None and cancel.kind == "decode" else None
        self._peek: Timeline | None = None if self._cancel_at is None else Timeline(dialect)

    # --- Sink

    def connected(self, t: int, new: bool) -> None:
        if not self.over:
            self.raw.conn, self.raw.conn_new = t, new

    def sent(self, t: int) -> None:
        if not self.over:
            self.raw.sent = t

    def expect(self, head: Head) -> Lane | None:
        """The short way for an answer that begins so, if its events begin as those of others did."""
        habit = self._habit
        if self.over or self._peek is not None or habit.begin == NEVER:
            return None
        if head is not habit.head:
            if not _is_stream(head.status, head.headers):
                return None
            habit.head = head
        self._expected, self._lane_of = head, habit.begin
        self._lane = make_lane(habit.begin, self._dialect.hints, self.raw.reads, head.block)
        return self._lane

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        if self.over:
            return
        raw = self.raw
        raw.headers_at, raw.headers_real, raw.status, raw.headers = t, real, status, headers
        self._lane, self._lane_of, self._expected = None, b"", None
        self._watch = EndWatch(self._dialect, self._habit) if _is_stream(status, headers) else None
        if self._peek is not None:
            self._peek.headers(t, status, headers)

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        if self.over:
            return
        self.raw.reads.add(t, real, chunk)
        watch = self._looks()
        if watch is not None and self._lane is not None and self._lane.took:
            watch.begun()
        if watch is not None and watch.feed(t, chunk):
            self._ended(self, t)
        elif self._peek is not None and self._cancel_at is not None:
            self._peek.data(t, chunk)
            if self._peek.tokens() >= self._cancel_at:
                self._reached(self, t)

    def _looks(self) -> EndWatch | None:
        """Who watches the stream, also one whose head the lane has taken."""
        if self._begun():
            self._watch = EndWatch(self._dialect, self._habit, self._lane_of)
        return self._watch

    def _begun(self) -> bool:
        """Whether the lane has taken the head and nobody knew."""
        head, lane, raw = self._expected, self._lane, self.raw
        if head is None or lane is None or not lane.headers_at:
            return False
        raw.headers_at, raw.headers_real = lane.headers_at, lane.headers_real
        raw.status, raw.headers = head.status, head.headers
        self._expected = None
        return True

    def last(self, t: int) -> None:
        """The lane has taken the read that ended the answer, and with it the exchange."""
        self.disconnected = True
        if not self.over:
            self._ended(self, t)

    def lane(self) -> Lane | None:
        """The short way for the reads to come, as things stand."""
        watch = self._looks()
        usual = None if self.over or watch is None or self._peek is not None else watch.usual
        if usual is None:
            return None
        if self._lane is None or usual is not self._lane_of:
            self._lane = make_lane(usual, self._dialect.hints, self.raw.reads)
            self._lane_of = usual
        return self._lane

    def end(self) -> None:
        """It is over."""
        self.over = True
        self._begun()
        self.wait_no_more()

    def closed(self, t: int, how: Ending, detail: str) -> None:
        self.disconnected = True
        self.wait_no_more()
        if not self.over:
            self.raw.ending, self.raw.detail = how, detail
            self._ended(self, t)

    # --- limits

    def wait_in(self, line: Line[Flight], now: int) -> None:
        """Something is done about it if nothing happens for so long."""
        self._line = line
        line.join(self, now)

    def wait_no_more(self) -> None:
        """Nothing is to be done about it."""
        if self.timer is not None:
            cross_out(self.timer)
        if self._line is not None:
            self._line.leave(self)

    def deadline(self, limits: Timeouts) -> tuple[int, Limit]:
        """When the client gives up, by what `look` has seen so far, and by which limit. Only tokens are
        progress; an answer in one piece has only the total limit."""
        total = self.start + round(limits.total * 1e9)
        stage: tuple[int, Limit]
        if self.raw.conn is None:
            stage = self.start + round(limits.connect * 1e9), "connect"
        elif not self.streamed:
            stage = total, "total"
        elif self._progress is None:
            stage = self.start + round(limits.first_token * 1e9), "first_token"
        else:
            stage = self._progress + round(limits.between_tokens * 1e9), "between_tokens"
        return min(stage, (total, "total"))

    def look(self) -> None:
        """See when the last token came."""
        at = token_in(self.raw.chunks, self._dialect)
        if at is not None:
            self._progress = self.raw.users[at]

    def hand_over(self, t: int, cut: Cut | None, last: bool) -> Closed:
        """All that was seen until ``t``. The flight keeps nothing of it: timers may hold it for long."""
        raw, self.raw = self.raw, _GONE
        self._watch = self._lane = self._peek = None
        due, dequeued, start = self.due, self.dequeued, self.start
        return Closed(self.shot.id, due, dequeued, start, t, raw, cut, self.attempt, self.cap_wait, last)


def _is_stream(status: int, headers: Mapping[str, str]) -> bool:
    return is_answer(status) and "json" not in headers.get("content-type", "")


def _nothing() -> None:
    """Not connected yet."""
