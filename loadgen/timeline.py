"""One exchange as it was seen: stamped reads first, understood later (MEASUREMENT C2, C3).

While bytes come in, a read is only stamped and kept. It is parsed when something needs to know: a
marker that may end the answer, a planned cancel at a token, a timeout, or the close.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.answer import Answer
from loadgen.outcomes import Cut, Seen, outcome_of
from loadgen.sse import Parser
from loadgen.targets.base import Dialect
from loadgen.targets.reading import InBandError, find_error
from loadgen.transport import Ending
from results.attribution.usage import normalise
from results.record import Outcome, Record

_KEPT_HEAD = 65_536
"""Bytes of a body that is no event stream which are kept to be understood."""

CountTokens = Callable[[str], int]
"""Tokens of a text, without special tokens."""


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
        self.answer = Answer(dialect)
        self._headers: Mapping[str, str] = {}
        self._streamed = True
        self._reads: list[tuple[int, bytes]] = []
        self._last_read: int | None = None
        self._tail = b""
        self._watch = False
        self._head = bytearray()
        self._parser = Parser()

    # --- Sink

    def connected(self, t: int, new: bool) -> None:
        self.conn, self.conn_new = t, new

    def sent(self, t: int) -> None:
        self.sent_at = t

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        self.headers_at, self.status, self._headers = t, status, headers
        self._streamed = status == 200 and "json" not in headers.get("content-type", "")

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        self._reads.append((t, chunk))
        self._last_read = t
        # Looks for what may end the answer, also across two reads; whether it does, the parser says.
        edge = self._tail + chunk[:8]
        if self._watch or any(mark in chunk or mark in edge for mark in (b"[DONE]", b"error")):
            self._watch = True
        self._tail = chunk[-8:] if len(chunk) >= 8 else (self._tail + chunk)[-8:]

    def closed(self, t: int, how: Ending, detail: str) -> None:
        self.ending, self.detail = how, detail

    # --- what is known so far

    @property
    def over(self) -> bool:
        """The answer has ended, by its own word or with its connection. Parses only if a read may have
        ended it."""
        if self.ending is not None:
            return True
        if self._watch and self._streamed:
            self.advance()
            return self.answer.done_at is not None or self.answer.error is not None
        return False

    def advance(self) -> None:
        """Understand the reads that came in since the last call."""
        reads, self._reads = self._reads, []
        for t, chunk in reads:
            if len(self._head) < _KEPT_HEAD and (not self._streamed or self.answer.first_event is None):
                self._head += chunk[: _KEPT_HEAD - len(self._head)] if self._streamed else chunk
            if self._streamed:
                self.answer.read(t, self._parser.feed(chunk))

    def last_progress(self) -> int | None:
        """Time of the last token; comments are no progress."""
        self.advance()
        return self.answer.token_times[-1] if self.answer.token_times else None

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
        seen = Seen(
            self.status, self.ending, answer.done_at is not None, answer.finished, error, cut, self.detail
        )
        record.outcome = outcome_of(seen)
        record.http_status = self.status
        record.streamed = self._streamed or self.status != 200
        record.finish = answer.finishes.get(0)
        record.error = self._error_text(record.outcome, error)
        record.timeout_limit = cut.limit if record.outcome is Outcome.CLIENT_TIMEOUT and cut else None
        record.retry_after_s = _seconds(self._headers.get("retry-after"))
        self._fill_times(record, t0)
        self._fill_tokens(record, count_tokens)
        record.warnings += self._warnings(record, count_tokens)
        return self._exchange(record)

    def _understand_the_rest(self) -> None:
        self.advance()
        last = self._last_read
        if self._streamed:
            # An event cut off by us is no event; one whose stream ended is (C39).
            if last is not None and self.ending in ("complete", "eof"):
                self.answer.read(last, self._parser.close())
        elif self.status == 200 and last is not None:
            payload = _json(self._head)
            if isinstance(payload, dict):
                self.answer.whole(last, payload)

    def _error(self) -> InBandError | None:
        """An error in the answer, framed as events or as a bare body."""
        if self.answer.error is not None or self.answer.first_event is not None or not self._head:
            return self.answer.error
        payload = _json(self._head)
        return find_error(payload) if payload is not None else None

    def _error_text(self, outcome: Outcome, error: InBandError | None) -> str | None:
        if outcome in (Outcome.COMPLETED, Outcome.CANCELLED_BY_PLAN, Outcome.CENSORED_BY_RUN_END):
            return None
        if error is not None:
            return str(error)
        if outcome is Outcome.HTTP_ERROR and self._head:
            return bytes(self._head[:300]).decode("utf-8", "replace")
        return self.detail or None

    def _fill_times(self, record: Record, t0: int) -> None:
        answer = self.answer

        def since(t: int | None) -> int | None:
            return None if t is None else t - t0

        record.conn, record.conn_new = since(self.conn), self.conn_new
        record.sent, record.headers = since(self.sent_at), since(self.headers_at)
        record.first_event, record.first_visible = since(answer.first_event), since(answer.first_visible)
        ended = answer.done_at if answer.done_at is not None else answer.finish_at
        record.terminal = since(ended) if answer.error is None else None
        if answer.token_times:
            first = answer.token_times[0]
            record.first_token, record.last_token = since(first), since(answer.token_times[-1])
            record.event_us = [(t - first) // 1000 for t in answer.token_times]
        elif not record.streamed:
            record.last_token = record.terminal
        record.coalesced = answer.coalesced

    def _fill_tokens(self, record: Record, count_tokens: CountTokens | None) -> None:
        answer, usage = self.answer, self.answer.usage
        record.n_in = _int(usage.get("prompt_tokens"))
        cache = normalise({"usage": usage})
        record.prompt_total, record.cache_read = cache.prompt_total, cache.cache_read
        record.cache_write = cache.cache_write
        details = usage.get("completion_tokens_details")
        record.n_reasoning = _int(details.get("reasoning_tokens")) if isinstance(details, dict) else None
        if self.status == 200:
            record.n_out, record.n_out_source = self._n_out(count_tokens)
        counts = answer.token_counts
        known = [count for count in counts if count is not None]
        if counts and len(known) == len(counts):
            record.event_tokens = known
        elif counts and record.n_out_source == "usage" and record.n_out == len(counts):
            record.event_tokens = [1] * len(counts)  # each event bears one or more, so each bears one
        record.k_first = (counts[0] or 1) if counts else 1

    def _n_out(self, count_tokens: CountTokens | None) -> tuple[int, str]:
        """C9: usage, else what the events say, else a tokenizer over the whole text, else events."""
        answer = self.answer
        said = _int(answer.usage.get("completion_tokens"))
        if said is not None:
            return said, "usage"
        if answer.token_counts and None not in answer.token_counts:
            return answer.tokens, "ids"
        if count_tokens is not None:
            return count_tokens("".join(answer.reasoning) + "".join(answer.text)), "tokenizer"
        return len(answer.token_times), "events"

    def _warnings(self, record: Record, count_tokens: CountTokens | None) -> list[str]:
        answer, found = self.answer, []
        if answer.unterminated:
            found.append("unterminated_event")
        if record.outcome is Outcome.COMPLETED and self._streamed:
            if answer.done_at is None:
                found.append("missing_done")
            if not answer.finished:
                found.append("missing_finish_reason")
        if record.n_reasoning and not any(answer.reasoning):
            found.append("hidden_reasoning")
        if count_tokens is not None and record.n_out_source == "usage":
            text = "".join(answer.reasoning) + "".join(answer.text)
            if text and count_tokens(text) != record.n_out:
                found.append("tokenizer_mismatch")
        return found

    def _exchange(self, record: Record) -> Exchange:
        answer = self.answer
        gap = None
        if answer.first_visible is not None and answer.last_reasoning is not None:
            gap = answer.first_visible - answer.last_reasoning
        tools = [answer.tools[index] for index in sorted(answer.tools)]
        text, reasoning = "".join(answer.text), "".join(answer.reasoning)
        return Exchange(record, text, reasoning, tools, answer.ids, answer.usage, gap)


def _json(body: bytearray) -> Any:
    try:
        return json.loads(bytes(body))
    except ValueError:
        return None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: str | None) -> float | None:
    """Retry-After in seconds; its date form needs a wall clock and is not read."""
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None
