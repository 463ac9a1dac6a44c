"""The door: what is decided about a request before it joins the queue (FLEET F1, ENGINE E22, E32)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
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
from engine.sched.admission import GateRefused, gate, unit_blocks
from engine.sched.fairness import DEFAULT_TENANT, tenant_config
from engine.sched.orders import Waiting

DEFAULT_CLASS = "default"

AdapterOf = Callable[[str | None], str | None]
"""Content digest of the adapter with this name, None for no name; raises Rejected (404)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What of the model changes K/V: part of every namespace root (ENGINE E7)."""

    model: str
    weights: str | None = None
    tokenizer: str | None = None
    positions: str | None = None
    precision: str | None = None

    def root(
        self,
        block_size: int,
        tenant: str,
        salt: str | None,
        adapter: str | None = None,
        adapter_digest: str | None = None,
    ) -> bytes:
        return namespace_root(
            model=self.model,
            block_size=block_size,
            isolation_key=tenant,
            weights=self.weights,
            tokenizer=self.tokenizer,
            positions=self.positions,
            precision=self.precision,
            adapter=adapter,
            adapter_digest=adapter_digest,
            salt=salt,
        )


def config_digest(config: EngineConfig) -> str:
    """The config id: a hash of all effective values (ENGINE E50)."""
    plain = json.dumps(config_to_dict(config), sort_keys=True)
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def no_adapters(name: str | None) -> None:
    """An ``AdapterOf`` where there are none."""
    if name is not None:
        raise Rejected(404, "model_not_found", f"there is no adapter {name!r}")


class Door:
    """Turns an Ask into a Run, or raises Rejected. Numbers requests in order of arrival."""

    def __init__(self, config: EngineConfig, identity: Identity, adapter_of: AdapterOf = no_adapters) -> None:
        self._identity = identity
        self._adapter_of = adapter_of
        self._last = 0
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        self._config = config

    def class_of(self, named: str, tenant: str = DEFAULT_TENANT) -> str:
        """The class it is served in. The tenant's own may only be lowered; an unlabelled request has it, else
        ``default``, else the least urgent one. Raises Rejected for a class that it cannot have."""
        classes = self._config.classes
        own = tenant_config(self._config.tenants, tenant).class_
        if named == DEFAULT_CLASS and own is not None:
            return own
        if named in classes:
            if own is not None and classes[named].rank < classes[own].rank:
                what = f"tenant {tenant!r} is of class {own!r} and may name a less urgent one, not {named!r}"
                raise Rejected(403, "class_not_allowed", what)
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
        states = {f"{w.state}: {w.reason}" if w.state is State.GONE else str(w.state) for w in known}
        retry_after = max(1, math.ceil(self._config.health.restart_backoff)) + 1
        return f"no worker is in rotation ({', '.join(sorted(states))})", retry_after

    def knock(self, class_: str, tenant: str, dispatcher: Dispatcher, health: Iterable[WorkerHealth]) -> str:
        """The class it is served in; raises Rejected for what can be refused without the prompt (E32)."""
        served = self.class_of(class_, tenant)
        closed = self.not_ready(health)
        if closed is not None:
            raise Rejected(503, "not_ready", closed[0], closed[1])
        full = dispatcher.queue.full(served, tenant, dispatcher.rates.pool())
        if full is not None:
            raise Rejected(429, full.code, full.message, full.retry_after)
        return served

    def admit(self, ask: Ask, now: int, dispatcher: Dispatcher, health: Sequence[WorkerHealth]) -> Run:
        """Check it and number it; the caller queues it in the same call (E24: nothing in between)."""
        class_ = self.knock(ask.class_, ask.tenant, dispatcher, health)
        limits = self._config.classes[class_]
        out_max = self._gate(ask, limits, [h.hello for h in health if h.hello is not None])
        request = self._request(ask, class_, limits, out_max, now)
        dispatcher.events.know_root(request.root)
        uncached = len(ask.tokens) - dispatcher.best_hit(request, now)
        entry = Waiting(
            id=request.id,
            class_=class_,
            rank=limits.rank,
            arrived=now,
            deadline=request.deadline,
            prompt=len(ask.tokens),
            uncached=uncached,
            output=dispatcher.outputs.expected(class_, out_max),
            tenant=ask.tenant,
            n=ask.n,
            room=self._room(ask, out_max),
            aged=now + int(4e9 * uncached / dispatcher.rates.pool_prefill()),
        )
        refusal = dispatcher.queue.refusal(entry, dispatcher.rates.pool(), now)
        if refusal is not None:
            raise Rejected(429, refusal.code, refusal.message, refusal.retry_after)
        self._last = request.id
        return Run(request.id, ask, request, entry, received=request.arrived, queued=now)

    def _gate(self, ask: Ask, limits: ClassConfig, hellos: Sequence[Hello]) -> int:
        smallest = min(hellos, key=lambda hello: hello.blocks)
        try:
            out_max = gate(
                len(ask.tokens),
                ask.max_tokens,
                limits,
                self._config.admission,
                min(hello.max_model_len for hello in hellos),
                smallest.blocks,
                smallest.block_size,
                ask.n,
            )
        except GateRefused as refused:
            raise Rejected(400, refused.code, refused.message) from refused
        cap = tenant_config(self._config.tenants, ask.tenant).max_kv_tokens
        if cap is not None and (room := self._room(ask, out_max)) > cap:
            what = f"the request may come to hold {room} KV tokens, tenant {ask.tenant!r} may hold {cap}"
            raise Rejected(400, "tenant_kv_limit", what)
        return out_max

    def _room(self, ask: Ask, out_max: int) -> int:
        """KV tokens of its blocks when all its choices have their longest outputs."""
        size, prompt = self._config.memory.block_size, len(ask.tokens)
        return size * unit_blocks(prompt, prompt + out_max, size, ask.n)

    def _life(self, named: str | None, limits: ClassConfig) -> int | None:
        """ns that its blocks are promised to stay: the life that it names, at most its class's (E15)."""
        lives = self._config.cache.retention
        if named is not None and named not in lives:
            known = ", ".join(lives) or "none: cache.retention is empty"
            raise Rejected(400, "unknown_retention", f"retention {named!r} is none of {known}")
        most = None if limits.retention is None else lives[limits.retention]
        asked = most if named is None else lives[named]
        if asked is None:
            return None
        return round(1e9 * (asked if most is None else min(asked, most)))

    def _request(self, ask: Ask, class_: str, limits: ClassConfig, out_max: int, now: int) -> Request:
        block_size = self._config.memory.block_size
        adapter = self._adapter_of(ask.adapter)
        root = self._identity.root(block_size, ask.tenant, ask.cache_salt, ask.adapter, adapter)
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
            n=ask.n,
            adapter=adapter,
            life=self._life(ask.retention, limits),
        )
