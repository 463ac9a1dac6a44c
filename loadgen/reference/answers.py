"""One answer as the server writes it: pieces of bytes, each with its time and the tokens it completes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from loadgen.reference.framing import Writes, cut, framed
from loadgen.reference.http_answers import error_body, http_head, json_answer
from loadgen.reference.requests import Asked
from loadgen.reference.script import Failure, FailureKind, Framing, Script
from loadgen.reference.timetable import Timetable
from loadgen.reference.wire import WIRES, Ending, Event, Usage, Wire

_MOST_CACHED = 10_000


class End(IntEnum):
    """How an answer ends. All but the last two are the script's doing."""

    WHOLE = 0
    FAILED = 1
    """With an error event."""
    TRUNCATED = 2
    RESET = 3
    SILENT = 4
    """Nothing more comes; the client has to hang up."""
    HUNG_UP = 5
    """The client went away before the end."""
    STOPPED = 6
    """The server was ended in the middle."""


_ENDS: dict[FailureKind, End] = {
    "status": End.WHOLE,
    "in_band": End.FAILED,
    "truncate": End.TRUNCATED,
    "reset": End.RESET,
    "silence": End.SILENT,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """``offsets`` are ns from the read of the request's last byte, one for each piece and in order. The
    last piece may be empty: then only what ``end`` says happens at its time."""

    pieces: tuple[bytes, ...]
    offsets: tuple[int, ...]
    tokens: tuple[int, ...]
    status: int = 200
    end: End = End.WHOLE
    keep: bool = True
    """The connection may be used again after it."""


@dataclass(frozen=True, slots=True)
class _Stem:
    """The token events of an answer but those of its last write, as they are for all of that length."""

    pieces: tuple[bytes, ...]
    tokens: tuple[int, ...]
    whose: tuple[int, ...]
    """The token, from 0, at whose time each piece is due."""
    size: int
    rest: tuple[int, ...]
    """Tokens of the last write."""


class Answers:
    """Makes the answers of one server process; what is equal for many requests is made once."""

    def __init__(self, script: Script, process: int = 0) -> None:
        self._script = script
        self._timetable = Timetable(script, process)
        self._stems: dict[tuple[str, int, int], _Stem] = {}
        self._tails: dict[tuple[str, int, int, bool, str], Writes] = {}
        self._heads: dict[tuple[str, int], Writes] = {}
        self._ready: dict[tuple[str, int, Asked], Answer] = {}
        """Streams that do not fail; empty where times are drawn."""

    def answer(self, path: str, asked: Asked, prompt: int) -> Answer:
        """The answer to a request for ``path``, one of WIRES, with ``prompt`` tokens by our count."""
        script = self._script
        if script.prompt_tokens is not None:
            prompt = script.prompt_tokens
        failure = self._timetable.failure()
        key = (path, prompt, asked)
        if failure is None and (found := self._ready.get(key)) is not None:
            return found
        n = script.length(asked.max_tokens)
        offsets = self._timetable.offsets(n)
        if failure is not None and failure.kind == "status":
            return refusal(failure)
        if not asked.stream:
            return self._whole(path, n, asked, prompt, offsets, failure)
        if failure is not None:
            return self._failing(path, n, asked, prompt, offsets, failure)
        made = self._stream(path, n, asked, prompt, offsets)
        if script.jitter is None:
            _bound(self._ready)
            self._ready[key] = made
        return made

    def _stream(self, path: str, n: int, asked: Asked, prompt: int, offsets: tuple[int, ...]) -> Answer:
        stem, tail = self._stem(path, n, n), self._tail(path, n, asked, prompt)
        head = self._head(path, prompt, stem.size + tail.size)
        pieces, tokens = stem.pieces + tail.pieces, stem.tokens + tail.tokens
        last = len(tail.pieces)
        times = _times(stem, offsets) + (offsets[-1],) * last
        return _headed(self._script.framing, head, Answer(pieces, times, tokens, keep=self._keep))

    @property
    def _keep(self) -> bool:
        return self._script.framing.transfer != "close"

    def _failing(
        self, path: str, n: int, asked: Asked, prompt: int, offsets: tuple[int, ...], failure: Failure
    ) -> Answer:
        """The first tokens, then the failure at the time of the next one."""
        after = min(failure.after, n)
        stem = self._stem(path, n, after)
        kept = self._tokens(path, stem.rest)
        final = Writes((b"",), (0,))
        size = self._stem(path, n, n).size + self._tail(path, n, asked, prompt).size
        if failure.kind == "in_band":
            error = WIRES[path].error("scripted failure")
            final = framed(self._script.framing, [(error, False)], last=True)
            size = stem.size + kept.size + final.size
        at = offsets[after] if after < n else offsets[-1]
        times = (
            _times(stem, offsets)
            + ((offsets[after - 1],) * len(kept.pieces) if after else ())
            + (at,) * len(final.pieces)
        )
        answer = Answer(
            stem.pieces + kept.pieces + final.pieces,
            times,
            stem.tokens + kept.tokens + final.tokens,
            end=_ENDS[failure.kind],
            keep=failure.kind == "in_band" and self._keep,
        )
        return _headed(self._script.framing, self._head(path, prompt, size), answer)

    def _stem(self, path: str, n: int, upto: int) -> _Stem:
        """Of the first ``upto`` tokens of an answer of ``n``."""
        found = self._stems.get((path, n, upto))
        if found is None:
            _bound(self._stems)
            found = self._stems[path, n, upto] = self._made_stem(path, upto)
        return found

    def _made_stem(self, path: str, upto: int) -> _Stem:
        step = self._script.framing.events_per_write
        groups = [tuple(range(k, min(k + step, upto))) for k in range(0, upto, step)]
        writes = [(self._tokens(path, group), group[-1]) for group in groups[:-1]]
        return _Stem(
            tuple(piece for made, _ in writes for piece in made.pieces),
            tuple(count for made, _ in writes for count in made.tokens),
            tuple(whose for made, whose in writes for _ in made.pieces),
            sum(made.size for made, _ in writes),
            groups[-1] if groups else (),
        )

    def _tokens(self, path: str, group: Sequence[int]) -> Writes:
        if not group:
            return Writes((), ())
        first = group[0] == 0 and not self._has_prelude(WIRES[path])
        return framed(self._script.framing, self._events(path, group), first=first)

    def _tail(self, path: str, n: int, asked: Asked, prompt: int) -> Writes:
        """The last write of a stream: its last tokens and all that follows them."""
        finish = "length" if n == asked.max_tokens else "stop"
        key = (path, n, prompt, asked.include_usage, finish)
        found = self._tails.get(key)
        if found is None:
            _bound(self._tails)
            found = self._tails[key] = self._made_tail(path, n, asked, prompt, finish)
        return found

    def _made_tail(self, path: str, n: int, asked: Asked, prompt: int, finish: str) -> Writes:
        script, wire = self._script, WIRES[path]
        group = self._stem(path, n, n).rest
        wanted = asked.include_usage or not wire.roles
        said = script.usage == "always" or (script.usage == "asked" and wanted)
        usage = Usage(prompt, n, script.cached_tokens) if said else None
        ending = Ending(finish if script.finish else None, usage, script.done)
        events = self._events(path, group)
        events += [(event, False) for event in wire.tail(script.model, n, ending)]
        first = group[0] == 0 and not self._has_prelude(wire)
        return framed(script.framing, events, first=first, last=True)

    def _events(self, path: str, group: Sequence[int]) -> list[tuple[Event, bool]]:
        return [(WIRES[path].token(self._script.model, k), True) for k in group]

    def _has_prelude(self, wire: Wire) -> bool:
        return (self._script.prelude or not wire.roles) and bool(wire.prelude(self._script.model, 0))

    def _head(self, path: str, prompt: int, size: int) -> Writes:
        """HTTP head and prelude; ``size`` = bytes of the body behind the prelude."""
        framing, wire = self._script.framing, WIRES[path]
        if framing.transfer != "length":
            size = 0
        key = (path, size if wire.roles else -prompt - 1)
        cachable = wire.roles or framing.transfer != "length"
        found = self._heads.get(key) if cachable else None
        if found is None:
            _bound(self._heads)
            found = self._made_head(path, prompt, size)
            if cachable:
                self._heads[key] = found
        return found

    def _made_head(self, path: str, prompt: int, size: int) -> Writes:
        framing, wire = self._script.framing, WIRES[path]
        prelude = b""
        if self._has_prelude(wire):
            events = [(event, False) for event in wire.prelude(self._script.model, prompt)]
            prelude = b"".join(framed(framing, events, first=True).pieces)
        fields = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        match framing.transfer:
            case "chunked":
                fields["Transfer-Encoding"] = "chunked"
            case "length":
                fields["Content-Length"] = str(len(prelude) + size)
            case "close":
                fields["Connection"] = "close"
        return cut(framing, http_head(200, fields) + prelude)

    def _whole(
        self,
        path: str,
        n: int,
        asked: Asked,
        prompt: int,
        offsets: tuple[int, ...],
        failure: Failure | None,
    ) -> Answer:
        """An answer in one piece, when its last token would have come."""
        finish = "length" if n == asked.max_tokens else "stop"
        usage = Usage(prompt, n, self._script.cached_tokens)
        data = json_answer(200, WIRES[path].whole(self._script.model, n, finish, usage))
        if failure is None:
            return Answer((data,), (offsets[-1],), (0,))
        match failure.kind:
            case "in_band":
                data = json_answer(200, error_body("scripted failure", 500))
            case "truncate":
                data = data[: len(data) * 3 // 4]
            case _:
                data = b""
        keep = failure.kind == "in_band"
        return Answer((data,), (offsets[-1],), (0,), end=_ENDS[failure.kind], keep=keep)


def refusal(failure: Failure) -> Answer:
    """An HTTP error, at once."""
    fields = {} if failure.retry_after is None else {"Retry-After": f"{failure.retry_after:g}"}
    data = json_answer(failure.status, error_body("scripted refusal", failure.status), fields)
    return Answer((data,), (0,), (0,), failure.status)


def _times(stem: _Stem, offsets: tuple[int, ...]) -> tuple[int, ...]:
    if len(stem.whose) == len(offsets) - 1:  # a write for each token, the usual script
        return offsets[:-1]
    return tuple(offsets[k] for k in stem.whose)


def _headed(framing: Framing, head: Writes, answer: Answer) -> Answer:
    if framing.head == "with the first" and answer.pieces[0]:
        merged = b"".join(head.pieces) + answer.pieces[0]
        pieces = (merged, *answer.pieces[1:])
        return replace(answer, pieces=pieces)
    extra = (0,) * len(head.pieces)
    return replace(
        answer,
        pieces=head.pieces + answer.pieces,
        offsets=extra + answer.offsets,
        tokens=extra + answer.tokens,
    )


def _bound(cache: dict[Any, Any]) -> None:
    if len(cache) >= _MOST_CACHED:
        cache.clear()
