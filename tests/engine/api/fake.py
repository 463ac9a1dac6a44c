"""A scripted fleet for tests of the HTTP layer: it does nothing until the test says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import log
from typing import Any

from engine.api.exchange import ApiRequest, Headers
from engine.api.generation import Stamps
from engine.api.service import Service
from engine.config import ClassConfig, EngineConfig
from engine.fleet.backend import Ask, Ended, Generated, Listener, Rejected
from engine.model.byte_tokenizer import ByteTokenizer
from engine.request import Finish, Logprob

CONFIG = EngineConfig(model="tiny", classes={"chat": ClassConfig(), "default": ClassConfig()})
TOKENIZER = ByteTokenizer()
STAMPS = Stamps(clock=lambda: 7, created=lambda: 1_700_000_000)


@dataclass
class FakeFleet:
    rejection: Rejected | None = None
    reason: tuple[str, int] | None = None
    asks: list[Ask] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    cancels: list[tuple[int, Finish]] = field(default_factory=list)
    choice_cancels: list[tuple[int, Finish, int]] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    loras: tuple[str, ...] = ()

    full: Rejected | None = None

    def admits(self, class_: str, tenant: str = "default") -> None:
        if self.full is not None:
            raise self.full

    def submit(self, ask: Ask, listener: Listener) -> tuple[int, int]:
        if self.rejection is not None:
            raise self.rejection
        self.asks.append(ask)
        self.listeners.append(listener)
        return len(self.asks), ask.max_tokens or 256

    def cancel(self, id: int, reason: Finish = Finish.CANCELLED, choice: int | None = None) -> None:
        if choice is None:
            self.cancels.append((id, reason))
        else:
            self.choice_cancels.append((id, reason, choice))

    def wrote(self, id: int, now: int) -> None:
        self.writes.append(id)

    def not_ready(self) -> tuple[str, int] | None:
        return self.reason

    def adapters(self) -> tuple[str, ...]:
        return self.loras

    def metrics(self) -> bytes:
        return b"# nothing\n"

    def digests(self, tokens: Any, tenant: str) -> list[bytes]:
        return [bytes([len(tokens)]) * 16]

    def say(
        self,
        text: str,
        request: int = 1,
        choice: int = 0,
        finish: Finish | None = None,
        top: int | None = None,
    ) -> None:
        """Generate the bytes of ``text`` for a choice of a request, each of probability 1/2; with the next
        ``top`` byte values of 1/4."""
        ids = tuple(TOKENIZER.encode(text))
        logprobs: tuple[Logprob, ...] = ()
        if top is not None:
            tops = [tuple(range(i + 1, i + 1 + top)) for i in ids]
            logprobs = tuple(
                Logprob(i, log(0.5), ahead, (log(0.25),) * top) for i, ahead in zip(ids, tops, strict=True)
            )
        self.listeners[request - 1](Generated(ids, choice, logprobs, finish))

    def end(self, finish: Finish, generated: int = 0, request: int = 1, **more: Any) -> None:
        ask, hits = self.asks[request - 1], more.pop("hits", {})
        self.listeners[request - 1](
            Ended(finish, len(ask.tokens), hits, generated, ask.max_tokens or 256, **more)
        )


@dataclass
class FakeSink:
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False

    def start(self, status: int, headers: Headers) -> None:
        assert self.status is None
        self.status, self.headers = status, dict(headers)

    def write(self, data: bytes) -> None:
        assert self.status is not None
        assert not self.ended
        self.body += data

    def end(self) -> None:
        assert self.status is not None
        assert not self.ended
        self.ended = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Data of the server-sent events, ``[DONE]`` as a string."""
        lines = [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


@dataclass
class Bench:
    fleet: FakeFleet = field(default_factory=FakeFleet)

    def __post_init__(self) -> None:
        self.service = Service(self.fleet, TOKENIZER, CONFIG, STAMPS)

    def post(self, path: str, body: Any, **headers: str) -> tuple[FakeSink, Any]:
        """Returns the sink and what aborts the exchange; header names with _ for -."""
        sink = FakeSink()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return sink, self.service.handle(ApiRequest("POST", path, named, data), sink)

    def get(self, path: str, method: str = "GET") -> FakeSink:
        sink = FakeSink()
        self.service.handle(ApiRequest(method, path, {}), sink)
        return sink

    def complete(self, **body: Any) -> tuple[FakeSink, Any]:
        return self.post("/v1/completions", {"model": "tiny", "prompt": "hi", **body})

    def chat(self, **body: Any) -> tuple[FakeSink, Any]:
        messages = [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", {"model": "tiny", "messages": messages, **body})
