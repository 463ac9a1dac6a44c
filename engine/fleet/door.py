"""The door: what is decided about a request before it joins the queue (FLEET F1, ENGINE E22, E32)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.config import ClassConfig, EngineConfig
from engine.config_io import config_to_dict
from engine.fleet.backend import Ask, Rejected
from engine.fleet.dispatch import Dispatcher
from engine.fleet.health import State, WorkerHealth
from engine.fleet.run import Run
from engine.kv.blocks import block_digests, namespace_root
from engine.messages import Hello
from engine.request import Request, Tokens
from engine.sched.admission import GateRefused, gate
from engine.sched.queue import Waiting

DEFAULT_CLASS = "default"


@dataclass(frozen=True, slots=True)
class Identity:
    """What of the model changes K/V: part of every namespace root (ENGINE E7)."""

    model: str
    weights: str | None = None
    tokenizer: str | None = None
    positions: str | None = None
    precision: str | None = None

    def root(self, block_size: int, tenant: str, salt: str | None) -> bytes:
        return namespace_root(
            model=self.model,
            block_size=block_size,
            isolation_key=tenant,
            weights=self.weights,
            tokenizer=self.tokenizer,
            positions=self.positions,
            precision=self.precision,
            salt=salt,
        )


def config_digest(config: EngineConfig) -> str:
    """The config id: a hash of all effective values (ENGINE E50)."""
    plain = json.dumps(config_to_dict(config), sort_keys=True)
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


class Door:
    """Turns an Ask into a Run, or raises Rejected. Numbers requests in order of arrival."""

    def __init__(self, config: EngineConfig, identity: Identity) -> None:
        self._identity = identity
        self._last = 0
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        self._config = config

    def class_of(self, named: str) -> str:
        """The class it is served in: an unlabelled request is the least urgent class's if there is no
        ``default``. Raises Rejected for a class that does not exist."""
        classes = self._config.classes
        if named in classes:
            return named
        if named == DEFAULT_CLASS:
            return max(classes, key=lambda name: classes[name].rank)
        known = ", ".join(classes)
        raise Rejected(400, "unknown_class", f"class {named!r} is none of {known}")

    def digests(self, tokens: Tokens[int], tenant: str, salt: str | None = None) -> tuple[bytes, ...]:
        """Chained digests of the full blocks of a prompt (ENGINE E8)."""
        block_size = self._config.memory.block_size
        return block_digests(self._identity.root(block_size, tenant, salt), tokens, block_size)

    def not_ready(self, health: Iterable[WorkerHealth]) -> tuple[str, int] | None:
        """Why nothing can be served now, and in how many seconds to ask again (E52)."""
        known = list(health)
        if any(worker.state is State.IN_ROTATION for worker in known):
            return None
        states = {worker.state.value for worker in known}
        retry_after = max(1, math.ceil(self._config.health.restart_backoff)) + 1
        return f"no worker is in rotation ({', '.join(sorted(states))})", retry_after

    def knock(self, class_: str, dispatcher: Dispatcher, health: Iterable[WorkerHealth]) -> None:
        """Raises Rejected for what can be refused without knowing the prompt (E32)."""
        self.class_of(class_)
        closed = self.not_ready(health)
        if closed is not None:
            raise Rejected(503, "not_ready", closed[0], closed[1])
        full = dispatcher.queue.full(dispatcher.rates.pool())
        if full is not None:
            raise Rejected(429, full.code, full.message, full.retry_after)

    def admit(self, ask: Ask, now: int, dispatcher: Dispatcher, health: Sequence[WorkerHealth]) -> Run:
        """Check it and number it; the caller queues it in the same call (E24: nothing in between)."""
        self.knock(ask.class_, dispatcher, health)
        class_ = self.class_of(ask.class_)
        limits = self._config.classes[class_]
        out_max = self._gate(ask, limits, [h.hello for h in health if h.hello is not None])
        request = self._request(ask, class_, limits, out_max, now)
        dispatcher.events.know_root(request.root)
        entry = Waiting(
            id=request.id,
            class_=class_,
            rank=limits.rank,
            arrived=now,
            deadline=request.deadline,
            prompt=len(ask.tokens),
            uncached=len(ask.tokens) - dispatcher.best_hit(request, now),
            output=dispatcher.outputs.expected(class_, out_max),
        )
        refusal = dispatcher.queue.refusal(entry, dispatcher.rates.pool(), now)
        if refusal is not None:
            raise Rejected(429, refusal.code, refusal.message, refusal.retry_after)
        self._last = request.id
        return Run(request.id, ask, request, entry, received=request.arrived, queued=now)

    def _gate(self, ask: Ask, limits: ClassConfig, hellos: Sequence[Hello]) -> int:
        smallest = min(hellos, key=lambda hello: hello.blocks)
        try:
            return gate(
                len(ask.tokens),
                ask.max_tokens,
                limits,
                self._config.admission,
                min(hello.max_model_len for hello in hellos),
                smallest.blocks,
                smallest.block_size,
            )
        except GateRefused as refused:
            raise Rejected(400, refused.code, refused.message) from refused

    def _request(self, ask: Ask, class_: str, limits: ClassConfig, out_max: int, now: int) -> Request:
        block_size = self._config.memory.block_size
        root = self._identity.root(block_size, ask.tenant, ask.cache_salt)
        received = ask.received or now
        seconds = ask.deadline_s if ask.deadline_s is not None else limits.deadline
        return Request(
            id=self._last + 1,
            tokens=ask.tokens,
            root=root,
            digests=block_digests(root, ask.tokens, block_size),
            out_max=out_max,
            client_id=ask.client_id,
            sampling=ask.sampling,
            class_=class_,
            rank=limits.rank,
            tenant=ask.tenant,
            session=ask.session,
            arrived=received,
            deadline=None if seconds is None else received + int(seconds * 1e9),
        )
