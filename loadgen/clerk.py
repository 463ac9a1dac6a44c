"""The clerk: a process beside each load process that does all the thinking (MEASUREMENT C38).

It renders bodies ahead of their time, turns what came back into records, and writes them. It is started by
the load process with one end of a socket (loadgen.frames) and ends with it: when the socket closes, what
came in until then is understood and written, so a killed load process loses no closed request for which
the socket had room.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from loadgen.backlog import Backlog
from loadgen.clock import Clock, monotonic
from loadgen.desk import HURRY_NS
from loadgen.frames import Frame, Splitter, framed, unpack_closed, unpacked
from loadgen.health import freeze_heap
from loadgen.job import LoadJob
from loadgen.outbox import TOGETHER, Outbox
from loadgen.owncores import come_back, step_back
from loadgen.paperwork import Paperwork
from loadgen.plan_io import read_shots
from loadgen.raw import Closed
from loadgen.stamps import ClockSample

LOOK_AHEAD_NS = 4_000_000_000
"""How long before it is due a body is made; 2 s are promised."""
EARLY_BYTES = 48_000_000
"""As much is made before the load begins, when nobody wants the core, whenever it is due."""
SPELL_NS = 50_000_000
"""With it, those that are due so soon after it are made: many in one go cost much less each."""
SLICE_NS = 5_000_000
"""The longest that understanding goes on without a look at what is due or came in."""
GATHER_S = 0.01
"""How long what nobody waits for may lie in the socket: each frame that wakes us costs others the core."""
_SECOND = 1_000_000_000
_MOST = 1 << 20
_MOST_WAITING = 1000
"""Frames that may wait for the socket before bodies are made that are not due yet."""


class Clerk:
    """The loop of the process; what it knows is in its `Paperwork`."""

    def __init__(self, job: LoadJob, link: socket.socket, clock: Clock = monotonic) -> None:
        shots, phases, _ = read_shots(Path(job.plan), job.slice, prompts=True)
        self._work = Paperwork(job, shots, phases, self._say)
        self._link, self._clock = link, clock
        link.setblocking(False)
        self._splitter = Splitter()
        self._backlog = Backlog(Path(job.records).parent)
        self._held: Closed | None = None
        self._out = Outbox(link)
        self._due: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None
        self._t0 = self._second = clock()
        self._may_gather = not job.waits(shots)
        self._came = False
        """Something, the last time; more is likely to."""
        self._open = True
        self._asked_to_end = False

    def run(self) -> None:
        self._say(("ready",))
        while self._open and not self.over:
            self.step(self._patience())
        come_back()  # whoever made us the last one may be gone
        while not self.over:
            self.step(self._patience())
        self.finish()

    @property
    def over(self) -> bool:
        """All is understood that there will be."""
        return not self._waiting() and (self._asked_to_end or not self._open)

    def step(self, patience: float = 0.0) -> None:
        """A slice of everything; waits for the socket up to ``patience`` s."""
        if self._open:
            self._hear(patience)
        if self._feed():
            self._understand(self._clock() + SLICE_NS)
        if self._clock() >= self._second:
            self._second = self._clock() + _SECOND
            self._work.flush()
            self._say(("heard", self._work.heard()))

    def finish(self) -> None:
        """Close what is written, and say the last words."""
        self._work.close()
        if self._open:
            self._say(("heard", self._work.heard()))
            self._say(("done", self._work.done()))
            self._flush_all()

    def save(self) -> None:
        """It cannot go on: what is understood so far is kept."""
        self._work.flush()

    def _waiting(self) -> bool:
        return bool(self._backlog) or self._held is not None

    def _patience(self) -> float:
        """Seconds that may be spent waiting for the socket."""
        if self._held is None and self._backlog:
            return 0.0
        until = self._second
        if self._next is not None and len(self._out) < _MOST_WAITING:
            until = min(until, 0 if self._early(self._clock()) else self._next[0] - LOOK_AHEAD_NS)
        return min(max(0.0, (until - self._clock()) / 1e9), 1.0)

    # --- the link

    def _hear(self, patience: float) -> None:
        if self._came and self._may_gather and patience > 0:
            time.sleep(min(patience, GATHER_S))
            patience = 0.0
        readable, writable, _ = select.select([self._link], [self._link] if self._out else [], [], patience)
        self._came = bool(readable)
        if writable:
            self._flush()
        while readable:
            try:
                data = self._link.recv(_MOST)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self._open = False
                return
            for body in self._splitter.feed(data):
                self._take(body)
            readable = [self._link] if len(data) == _MOST else []

    def _take(self, body: bytes) -> None:
        """Answers and what is not sent wait in line; the rest is heeded at once."""
        frame = unpacked(body)
        match frame:
            case ("closed", *_):
                self._work.answer_at_once(frame)
                self._backlog.put(body)
            case ("unsent", *_):
                self._work.pass_at_once(frame)
                self._backlog.put(body)
            case ("clock", mono, offset, half):
                self._work.clock(ClockSample(mono, offset, half))
            case ("t0", t0):
                self._t0, self._due = t0, self._work.begin(t0)
                self._next = next(self._due, None)
            case ("end",):
                self._asked_to_end, self._next = True, None

    def _say(self, frame: Frame) -> None:
        self._out.put(frame)
        if len(self._out) >= TOGETHER:
            self._flush()

    def _flush(self) -> None:
        try:
            self._out.flush()
        except OSError:
            self._out.clear()  # nobody is there any more; reading will say so

    def _flush_all(self) -> None:
        self._link.setblocking(True)
        while self._out:
            self._flush()

    # --- the work

    def _feed(self) -> bool:
        """Render the bodies that are due soon, for at most one slice of time; whether none is left. As long
        as some are, nothing is understood: records may be late, bodies may not."""
        now = self._clock()
        soon, until = now + LOOK_AHEAD_NS, now + SLICE_NS
        if self._next is not None and self._next[0] <= soon:
            soon += SPELL_NS
        done = True
        while self._next is not None and len(self._out) < _MOST_WAITING:
            if self._next[0] > soon and not self._early(now):
                break
            if self._clock() > until:
                done = False
                break
            self._work.body(self._next[1], 1)
            self._next = next(self._due, None)
            if self._next is not None and self._next[0] > now + HURRY_NS:
                _make_way()
        self._flush()
        return done

    def _early(self, now: int) -> bool:
        return now < self._t0 and self._out.total < EARLY_BYTES

    def _understand(self, until: int) -> None:
        """Make records of what waits, until then."""
        while self._waiting() and self._clock() < until:
            if self._held is None:
                frame = unpacked(self._backlog.get())
                if frame[0] == "unsent":
                    self._work.unsent(frame)
                    continue
                self._held = unpack_closed(frame)
            if self._open and not self._asked_to_end and not self._work.knows(self._held):
                return  # the next clock sample is not here yet
            self._work.closed(self._held)
            self._held = None
            _make_way()


def main(job_file: str, descriptor: str) -> int:
    """Entry point; the socket is inherited as ``descriptor``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends when its load process does
    said: dict[str, Any] = json.loads(Path(job_file).read_text())
    link = socket.socket(fileno=int(descriptor))
    clerk: Clerk | None = None
    try:
        job = LoadJob.of(said)
        step_back()
        clerk = Clerk(job, link)
        freeze_heap()  # a collection would go through the whole plan while sends wait for this core
        clerk.run()
    except Exception as error:
        traceback.print_exc()
        if clerk is not None:
            with suppress(OSError):  # a full disk, which may be why
                clerk.save()
        _complain(link, f"{type(error).__name__}: {error}")
        return 3
    return 0


def _make_way() -> None:
    """Between two pieces of work: a load process on the same core that has something to do need not wait for
    the scheduler's next tick."""
    if sys.platform == "linux":
        os.sched_yield()


def _complain(link: socket.socket, message: str) -> None:
    try:
        link.setblocking(True)
        link.sendall(framed(("error", message)))
    except OSError:
        pass  # nobody is there any more; it stands in the log


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
