"""What attribution may see of each request, asked of our own engine after the run (ATTRIBUTION 2).

While the run lasts, what was sent and what came back is kept in memory. Afterwards `/tokenize` turns
each prompt into ids, and ids and texts into salted hashes; then the texts are dropped.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.targets.base import Dialect
from loadgen.text import Message
from loadgen.timeline import Exchange
from loadgen.transport import Ending, HttpRequest, Transport
from results.attribution.fingerprints import fingerprints
from results.attribution.observed import Component, Observed, token_hashes
from results.record import Record


@dataclass(frozen=True, slots=True)
class Kept:
    """One sent request and its answer, in memory only."""

    record: Record
    messages: Sequence[Message]
    text: str
    output_ids: Sequence[int]


def keep(exchange: Exchange, messages: Sequence[Message]) -> Kept | None:
    """What is needed of a closed exchange; None for one that the engine never took."""
    record = exchange.record
    if record.sent is None or record.http_status not in (None, 200):
        return None
    return Kept(record, messages, exchange.text, tuple(exchange.output_ids))


@dataclass(frozen=True, slots=True)
class Tokenized:
    """An answer of `/tokenize`. ``components``: {path, role, start, tokens} of each message's content."""

    tokens: Sequence[int]
    components: Sequence[Mapping[str, Any]]


Tokenize = Callable[[Sequence[Message], str], Awaitable[Tokenized]]
"""Messages and tenant to token ids. Raises OSError if the target does not answer."""


def new_salt() -> int:
    """A salt for one run; whoever throws it away makes the hashes mute."""
    return secrets.randbits(63)


async def observe(kept: Iterable[Kept], tokenize: Tokenize, salt: int, endpoint: str) -> list[Observed]:
    """One `Observed` for each kept request, in order of its start."""
    ordered = sorted(kept, key=lambda one: (one.record.start or 0, one.record.id))
    ids = {one.record.id: one.record.request_id for one in ordered}
    observed = []
    for one in ordered:
        tokenized = await tokenize(one.messages, one.record.tenant)
        observed.append(_observed(one, tokenized, salt, endpoint, ids))
    return observed


def _observed(
    one: Kept, tokenized: Tokenized, salt: int, endpoint: str, request_ids: Mapping[int, str]
) -> Observed:
    record = one.record
    ended = record.terminal if record.terminal is not None else record.closed
    outputs = token_hashes(list(one.output_ids), salt, len(tokenized.tokens)) if one.output_ids else None
    return Observed(
        id=record.request_id,
        session=str(record.session),
        ts_start=(record.start or 0) / 1e9,
        ts_first_token=_s(record.first_token),
        ts_end=_s(ended),
        components=_components(one.messages, tokenized.components, salt),
        prompt_total=record.prompt_total,
        cache_read=record.cache_read,
        hashes=token_hashes(list(tokenized.tokens), salt),
        output_hashes=outputs,
        output=_output(one, len(tokenized.tokens), salt),
        branch=str(record.branch),
        declared_parent=request_ids.get(record.parent) if record.parent is not None else None,
        model=record.model,
        workspace=record.tenant,
        endpoint=endpoint,
        status=record.outcome.value,
        class_=record.class_,
    )


def _output(one: Kept, start: int, salt: int) -> Component | None:
    if not one.output_ids:
        return None
    prints = fingerprints(one.text, _key(salt))
    tok = len(one.output_ids)
    return Component("output", "message", start, tok, "assistant", prints.raw, prints.canon, prints.mask)


def _key(salt: int) -> bytes:
    return salt.to_bytes(8, "little")


def _s(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _components(
    messages: Sequence[Message], found: Sequence[Mapping[str, Any]], salt: int
) -> list[Component]:
    """The messages with their token spans; paths count system parts and others apart."""
    spans = {int(str(one["path"])[len("messages[") : -1]): one for one in found}
    components: list[Component] = []
    counts = {"system": 0, "message": 0}
    for index, message in enumerate(messages):
        kind = "system" if message["role"] == "system" else "message"
        path = f"{'system' if kind == 'system' else 'messages'}[{counts[kind]}]"
        counts[kind] += 1
        if (span := spans.get(index)) is None:
            continue
        prints = fingerprints(message["content"], _key(salt))
        components.append(
            Component(
                path,
                kind,
                int(span["start"]),
                int(span["tokens"]),
                message["role"],
                prints.raw,
                prints.canon,
                prints.mask,
            )
        )
    return components


class Answered:
    """A Sink for one small answer: a future of (status, body). OSError if it does not come."""

    def __init__(self) -> None:
        self.result: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body: list[bytes] = []

    def connected(self, t: int, new: bool) -> None: ...

    def sent(self, t: int) -> None: ...

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        self._status = status

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        self._body.append(chunk)

    def closed(self, t: int, how: Ending, detail: str) -> None:
        if self.result.done():
            return
        if how == "complete":
            self.result.set_result((self._status, b"".join(self._body)))
        else:
            self.result.set_exception(OSError(f"{how}: {detail}"))


async def fetch(transport: Transport, request: HttpRequest, limit: float = 30.0) -> tuple[int, bytes]:
    """One exchange to its end. Raises OSError, TimeoutError after ``limit`` s."""
    sink = Answered()
    abort = transport.send(request, sink)
    try:
        return await asyncio.wait_for(sink.result, limit)
    finally:
        abort()


def tokenizer_of(transport: Transport, dialect: Dialect) -> Tokenize:
    """Asks the target itself. Raises OSError with its words if it refuses."""

    async def tokenize(messages: Sequence[Message], tenant: str) -> Tokenized:
        request = dialect.tokenize(messages)
        headers = (*request.headers, ("X-Headrace-Tenant", tenant))
        status, body = await fetch(
            transport, HttpRequest(request.method, request.path, headers, request.body)
        )
        if status != 200:
            raise OSError(f"/tokenize answered {status}: {body[:200].decode('utf-8', 'replace')}")
        answer = json.loads(body)
        return Tokenized(answer["tokens"], answer.get("components", ()))

    return tokenize
