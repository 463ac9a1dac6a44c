"""One exchange as it was seen: stamped reads first, understood later (MEASUREMENT C2, C3).

Live, the reads are kept elsewhere (loadgen.raw) and replayed here when the exchange is over. As a Sink, a
read is only kept too; it is parsed when something needs to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.answer import Answer
from loadgen.body import BOM, Inflater, inflater_of, looks_streamed
from loadgen.eventstream import EventStream
from loadgen.outcomes import Cut, Seen, is_answer, outcome_of
from loadgen.payload import parsed, readable
from loadgen.raw import Raw
from loadgen.retryafter import retry_after
from loadgen.targets.base import Dialect
from loadgen.targets.errors import MOST_TEXT, find_error
from loadgen.targets.reading import InBandError
from loadgen.tokens import CountTokens, fill_tokens, token_warnings
from loadgen.transport import Ending
from results.record import MISSING_DONE, Outcome, Record

_KEPT_HEAD = 65_536
"""Bytes of a body without an event which are kept to be understood."""
_MOST_BODY = 300
"""Characters of it that an error shows."""


@dataclass(slots=True)
class Exchange:
    """What is left of a closed exchange beside its record; kept only where someone needs it."""

    record: Record
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    think_gap_ns: int | None = None


class Timeline:
    """The Sink of one exchange. All stamps are ns on the client's clock."""

    def __init__(self, dialect: Dialect) -> None:
        self.conn: int | None = None
        self.conn_new = False
        self.sent_at: int | None = None
        self.headers_at: int | None = None
        self.status: int | None = None
        self.ending: Ending | None = None
        self.detail = ""
        self._dialect = dialect
        self._stream = EventStream(dialect)
        self._headers: Mapping[str, str] = {}
        self._streamed: bool | None = None
        self._inflater: Inflater | None = None
        self._reads: list[tuple[int, bytes]] = []
        self._last_read: int | None = None
        self._head = bytearray()

    @property
    def answer(self) -> Answer:
        return self._stream.answer

    # --- Sink

    def connected(self, t: int, new: bool) -> None:
        self.conn, self.conn_new = t, new

    def sent(self, t: int) -> None:
        self.sent_at = t

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        self.headers_at, self.status, self._headers = t, status, headers
        self._inflater = inflater_of(headers)

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        self._reads.append((t, chunk))
        self._last_read = t

    def closed(self, t: int, how: Ending, detail: str) -> None:
        self.ending, self.detail = how, detail

    def replay(self, raw: Raw, times: Sequence[int], headers_at: int) -> None:
        """Take all of ``raw`` at once. ``times`` are those of its reads and ``headers_at`` that of its head,
        ns on the client's clock; the latter means nothing if there was no head."""
        if raw.conn is not None:
            self.connected(raw.conn, raw.conn_new)
        self.sent_at = raw.sent
        if raw.status is not None:
            self.headers(headers_at, raw.status, raw.headers)
        self._reads += zip(times, raw.chunks, strict=True)
        self._last_read = times[-1] if times else None
        self.ending, self.detail = raw.ending, raw.detail

    # --- what is known so far

    @property
    def over(self) -> bool:
        """The answer has ended, by its own word or with its connection."""
        self.advance()
        answer = self.answer
        return self.ending is not None or answer.done_at is not None or answer.error is not None

    def advance(self) -> None:
        """Understand the reads that came in since the last call."""
        reads, self._reads = self._reads, []
        begun = 0
        for t, chunk in reads:
            if self._streamed and self._inflater is None and self.answer.first_event is not None:
                break
            self._begin(t, chunk if self._inflater is None else self._inflater.feed(chunk))
            begun += 1
        self._stream.feed_all(reads[begun:] if begun else reads)

    def _begin(self, t: int, chunk: bytes) -> None:
        """Take a read while it still has to be seen what kind of body this is."""
        if self._streamed is None and is_answer(self.status):
            self._streamed = looks_streamed(self._head + chunk)
            if self._streamed and self._head:
                chunk, self._head = bytes(self._head) + chunk, bytearray()
        if self._streamed:
            if self.answer.first_event is None:
                self._keep(chunk)
            self._stream.feed(t, chunk)
        elif is_answer(self.status):
            self._head += chunk
        else:
            self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self._head += chunk[: max(0, _KEPT_HEAD - len(self._head))]

    def tokens(self) -> int:
        """Output tokens seen so far."""
        self.advance()
        return self.answer.tokens

    # --- the end

    def close(
        self, record: Record, t0: int, cut: Cut | None = None, count_tokens: CountTokens | None = None
    ) -> Exchange:
        """Fill ``record`` with all that was seen; ``t0`` turns stamps into times since t0."""
        self._understand_the_rest()
        answer, error = self.answer, self._error()
        done, finished = answer.done_at is not None, answer.finished
        seen = Seen(self.status, self.ending, done, finished, error, cut, self.detail)
        record.outcome = outcome_of(seen)
        record.http_status = self.status
        record.streamed = self._is_streamed
        finish = answer.first.finish
        record.finish = None if finish is None else self._text([finish])
        record.error = self._error_text(record.outcome, error)
        record.timeout_limit = cut.limit if record.outcome is Outcome.CLIENT_TIMEOUT and cut else None
        record.retry_after_s = retry_after(self._headers)
        self._fill_times(record, t0)
        if is_answer(self.status):
            fill_tokens(record, answer, count_tokens)
        record.warnings += self._warnings(record)
        record.warnings += token_warnings(record, answer, count_tokens)
        return self._exchange(record)

    @property
    def _is_streamed(self) -> bool:
        """False for an answer in one piece; where there is none, as its head announced it."""
        if not is_answer(self.status):
            return True
        if self._streamed is not None:
            return self._streamed
        return "json" not in self._headers.get("content-type", "")

    def _understand_the_rest(self) -> None:
        self.advance()
        last = self._last_read
        if last is None:
            return
        if self._streamed:
            # An event cut off by us is no event; one whose stream ended is (C39).
            if self.ending in ("complete", "eof"):
                self._stream.close(last)
        elif is_answer(self.status):
            payload = self._object()
            if isinstance(payload, dict):
                self.answer.whole(last, payload)

    def _error(self) -> InBandError | None:
        """An error in the answer, framed as events or as a bare body."""
        answer = self.answer
        understood = self._streamed or answer.done_at is not None or answer.error is not None
        if understood or not self._head:
            return answer.error
        if looks_streamed(self._head):  # the body of an error status
            events = EventStream(self._dialect)
            events.feed(0, bytes(self._head))
            events.close(0)
            return events.answer.error
        return find_error(self._object())

    def _object(self) -> Any:
        """The body as one JSON value."""
        return parsed(bytes(self._head).removeprefix(BOM))

    def _error_text(self, outcome: Outcome, error: InBandError | None) -> str | None:
        if outcome in (Outcome.COMPLETED, Outcome.CANCELLED_BY_PLAN, Outcome.CENSORED_BY_RUN_END):
            return None
        text = str(error) if error is not None else self._said(outcome)
        return self._dialect.redact(readable(text))[:MOST_TEXT] or None

    def _said(self, outcome: Outcome) -> str:
        """What a failure without an error object looked like."""
        body = self._text([bytes(self._head).decode("utf-8", "replace")])[:_MOST_BODY]  # no half of a key
        if outcome is Outcome.HTTP_ERROR and body:
            return body
        if self.status is not None and 300 <= self.status < 400:
            return f"status {self.status}: redirects are not followed"
        if outcome is Outcome.TRUNCATED and body and self.answer.first_event is None:
            coding = self._headers.get("content-encoding")
            coded = f" (content-encoding {coding})" if coding else ""
            return f"no answer is in this body{coded}: {body}"
        return self.detail

    def _fill_times(self, record: Record, t0: int) -> None:
        answer, choice = self.answer, self.answer.first

        def since(t: int | None) -> int | None:
            return None if t is None else t - t0

        record.conn, record.conn_new = since(self.conn), self.conn_new
        record.sent, record.headers = since(self.sent_at), since(self.headers_at)
        record.first_event, record.first_visible = since(answer.first_event), since(choice.first_visible)
        record.last_reasoning = since(choice.last_reasoning)
        ended = answer.done_at if answer.done_at is not None else answer.finish_at
        record.terminal = since(ended) if answer.error is None else None
        if times := choice.token_times:
            first = times[0]
            record.first_token, record.last_token = since(first), since(times[-1])
            record.event_us = [(t - first) // 1000 for t in times]
            if choice.shared:
                shared = set(choice.shared)
                record.single = [index not in shared for index in range(len(times))]
        elif not record.streamed:
            record.last_token = record.terminal
        record.coalesced = choice.coalesced

    def _warnings(self, record: Record) -> list[str]:
        found = []
        if self.answer.unterminated:
            found.append("unterminated_event")
        if self._inflater is not None:
            found.append("compressed")
        if record.outcome is Outcome.COMPLETED:
            if record.streamed and self.answer.done_at is None:
                found.append(MISSING_DONE)
            if not self.answer.finished:
                found.append("missing_finish_reason")
        return found

    def _exchange(self, record: Record) -> Exchange:
        answer, choice = self.answer, self.answer.first
        gap = None
        if choice.first_visible is not None and choice.last_reasoning is not None:
            gap = choice.first_visible - choice.last_reasoning
        tools = [choice.tools[index] for index in sorted(choice.tools)]
        for call in tools:
            call["arguments"] = self._text([call["arguments"]])
        text, reasoning = self._text(choice.text), self._text(choice.reasoning)
        return Exchange(record, text, reasoning, tools, choice.ids, answer.usage, gap)

    def _text(self, pieces: Sequence[str]) -> str:
        # Servers without keys are given words like EMPTY, which an answer may well hold.
        return self._dialect.redact(readable("".join(pieces)), least=6)
