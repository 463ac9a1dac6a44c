"""What a clerk knows: bodies to make, exchanges to understand, records to write, what to tell of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from loadgen.books import Books
from loadgen.client import Address, Client
from loadgen.clock import monotonic
from loadgen.frames import Frame, unpack_closed, unpack_unsent, who_closed
from loadgen.job import LoadJob
from loadgen.observe import Kept, keep, new_salt, observe, tokenizer_of
from loadgen.observed_io import write_observed
from loadgen.plan import Phases, Shot
from loadgen.raw import Closed
from loadgen.stamps import ClockBridge, ClockSample
from loadgen.text import Message
from loadgen.texts import write_texts
from loadgen.timeline import Exchange
from loadgen.tokens import counter_of
from results.record import Record
from results.recordfile import RecordWriter


class Paperwork:
    """``say`` sends a frame to the load process."""

    def __init__(
        self, job: LoadJob, shots: Sequence[Shot], phases: Phases, say: Callable[[Frame], None]
    ) -> None:
        self._job, self._say = job, say
        self._dialect, self._address = job.target.make(), Address.of(job.target.url)
        self._bridge = ClockBridge()
        count = None if job.tokenizer is None else counter_of(Tokenizer.from_file(job.tokenizer))
        renderer = job.renderer(self._dialect)
        self._books = Books(shots, phases, renderer, self._filed, self._attempted, self._bridge, count)
        self._first = sorted((shot.due_ns, shot.id) for shot in shots if shot.due_ns is not None)
        self._records = RecordWriter(Path(job.records))
        self._attempts: RecordWriter | None = None
        self._wants_texts = job.observed is not None or job.texts is not None
        self._messages: dict[int, list[Message]] = {}
        self._kept: list[Kept] = []

    # --- bodies

    def begin(self, t0: int) -> Iterator[tuple[int, int]]:
        """First turns as (due in ns on the clock, shot), in order."""
        self._books.begin(t0)
        return ((t0 + due, shot) for due, shot in self._first)

    def body(self, shot: int, attempt: int) -> None:
        rendered = self._books.scribe.render(shot, attempt)
        if self._wants_texts:
            self._messages[shot] = rendered.messages
        request = self._address.encode(rendered.request)
        self._say(("body", shot, attempt, request, rendered.streamed))

    # --- what came back

    def clock(self, sample: ClockSample) -> None:
        self._bridge.add(sample)

    def knows(self, closed: Closed) -> bool:
        """Whether the clock has been looked at since the last read, so that a jump would have been seen."""
        latest = self._bridge.latest
        return latest is not None and latest >= closed.closed

    def answer_at_once(self, frame: Frame) -> None:
        """Make the body of a next attempt. If others follow this request: tell how it ended, and make their
        bodies, ahead of its record."""
        shot, attempt, last = who_closed(frame)
        if not last:
            self.body(shot, attempt + 1)
        elif self._books.awaited(shot, last):
            closed = unpack_closed(frame)
            told, coming = self._books.ended(closed, self._books.read(closed))
            self._bodies(coming)
            self._say(("told", shot, told.completed, told.outcome, told.at, told.phase))

    def pass_at_once(self, frame: Frame) -> None:
        """Make the bodies of those that come although this one was not sent."""
        self._bodies(self._books.passed(unpack_unsent(frame)))

    def _bodies(self, coming: Sequence[int]) -> None:
        for shot in coming:
            self.body(shot, 1)

    def closed(self, closed: Closed) -> None:
        """Make the record of an attempt, and keep what attribution wants."""
        self._books.file(closed, self._books.read(closed))

    def unsent(self, frame: Frame) -> None:
        self._books.unsent(unpack_unsent(frame))

    def _attempted(self, record: Record) -> None:
        if self._attempts is None:
            self._attempts = RecordWriter(Path(self._job.attempts))
        self._attempts.append(record)

    def _filed(self, exchange: Exchange) -> None:
        self._records.append(exchange.record)
        messages = self._messages.pop(exchange.record.id, None)
        kept = keep(exchange, messages) if messages is not None else None
        if kept is not None:
            self._kept.append(kept)

    # --- what is said of it

    def heard(self) -> dict[str, Any]:
        return {name: astuple(heard) for name, heard in self._books.tallies.heard().items()}

    def flush(self) -> None:
        """Records to disk."""
        self._records.flush()
        if self._attempts is not None:
            self._attempts.flush()

    def close(self) -> None:
        self._records.close()
        if self._attempts is not None:
            self._attempts.close()

    def done(self) -> dict[str, Any]:
        """After the last record: the facts that only the desk has."""
        facts: dict[str, Any] = {
            "littles_sum": self._books.tallies.littles_sum,
            "lost": self._books.tallies.lost,
            "clerk_cpu_s": time.process_time(),
        }
        if self._job.observed is not None and self._dialect.own:
            facts["observe_error"] = asyncio.run(self._observe(Path(self._job.observed)))
        if self._job.texts is not None:
            write_texts(self._kept, Path(self._job.texts))
        return facts

    async def _observe(self, path: Path) -> str | None:
        """Write what attribution may see; returns why that could not be had, if so. The records stand
        either way."""
        salt = self._job.salt if self._job.salt is not None else new_salt()
        client = Client(self._address, monotonic, self._job.target.tls())
        try:
            tokenize = tokenizer_of(client, self._dialect)
            observed = await observe(self._kept, tokenize, salt, self._job.target.url)
        except (OSError, ValueError, KeyError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            await client.close()
        write_observed(observed, path)
        return None
