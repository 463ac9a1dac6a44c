"""Attribution of what a client of the real engine sees, in virtual time, against what the engine did."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from engine.config import CacheConfig, EngineConfig, MemoryConfig
from engine.fleet.backend import Ask, Ended, Generated, StreamEvent
from engine.fleet.fleet import Fleet
from engine.fleet.inproc import InprocPool
from engine.runner.simulated import SimulatedRunner
from loadgen.clock import Clock, run_virtual
from results.attribution.attribute import attribute
from results.attribution.observed import Component, Observed, token_hashes
from results.attribution.policies import headrace
from results.attribution.truth import score
from results.attribution.verdict import Attribution, Outcome

TTL = 30.0
POLICY = headrace(16, ttl_s=TTL)
Ids = list[int]


@dataclass
class Talk:
    """One conversation: parts are (path, role, ids); the answers that came back are parts of it."""

    session: str
    parts: list[tuple[str, str, Ids]]
    tenant: str = "default"

    def add(self, role: str, ids: Ids) -> None:
        self.parts.append((f"messages[{len(self.parts) - 1}]", role, ids))


@dataclass
class Lab:
    """A fleet and everything that its one client saw of it."""

    fleet: Fleet
    clock: Clock
    rng: random.Random
    log: list[Observed] = field(default_factory=list)

    def words(self, n: int) -> Ids:
        return [self.rng.randrange(5, 2000) for _ in range(n)]

    def talk(self, session: str, system: Ids, tenant: str = "default") -> Talk:
        return Talk(session, [("system[0]", "system", list(system))], tenant)

    async def turn(self, talk: Talk, user: int = 120, answer: int = 100) -> str:
        """The user says something, the engine answers; the request's id."""
        talk.add("user", self.words(user))
        request, sent = f"r{len(self.log)}-{talk.session}", self.clock()
        ids = [token for _, _, part in talk.parts for token in part]
        heard = _Heard(self.clock)
        self.fleet.submit(
            Ask(
                array("I", ids),
                answer,
                client_id=request,
                tenant=talk.tenant,
                session=talk.session,
                received=sent,
            ),
            heard,
        )
        place = len(self.log)
        self.log.append(_observed(request, talk, ids, sent))
        end = await heard.ended
        seen = self.log[place]
        seen.ts_first_token = None if heard.first is None else heard.first / 1e9
        seen.ts_end = self.clock() / 1e9
        seen.cache_read, seen.prompt_total = end.cached, end.prompt
        seen.status = "completed" if end.finish in ("length", "stop") else "in_band_error"
        seen.output_hashes = token_hashes(heard.ids, 9, first=len(ids))
        name = str(hash(tuple(heard.ids)))
        seen.output = Component("output", "message", len(ids), len(heard.ids), "assistant", name, name, name)
        talk.add("assistant", heard.ids)
        return request


class _Heard:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ids: Ids = []
        self.first: int | None = None
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def __call__(self, event: StreamEvent) -> None:
        if isinstance(event, Generated):
            self.first = self._clock() if self.first is None else self.first
            self.ids += event.ids
        else:
            self.ended.set_result(event)


def _observed(request: str, talk: Talk, ids: Ids, sent: int) -> Observed:
    components, at = [], 0
    for path, role, part in talk.parts:
        name = str(hash(tuple(part)))
        kind = "system" if role == "system" else "message"
        mask = "system" if kind == "system" else name
        components.append(Component(path, kind, at, len(part), role, name, name, mask))
        at += len(part)
    return Observed(
        id=request,
        session=talk.session,
        ts_start=sent / 1e9,
        ts_first_token=None,
        ts_end=None,
        components=components,
        prompt_total=None,
        cache_read=None,
        hashes=token_hashes(ids, 9),
        workspace=talk.tenant,
    )


Script = Callable[[Lab], Coroutine[Any, Any, None]]


def played(
    script: Script, *, blocks: int = 4000, workers: int = 1
) -> tuple[list[Attribution], dict[str, Any]]:
    """(verdicts, score) after the script."""

    async def main(clock: Clock) -> tuple[list[Attribution], dict[str, Any]]:
        config = EngineConfig(
            model="simulated",
            workers=workers,
            memory=MemoryConfig(kv_blocks=blocks),
            cache=CacheConfig(ttl=TTL),
        )
        pool = InprocPool(config, clock, lambda worker: SimulatedRunner(config.cost, worker=worker))
        fleet = Fleet(config, pool, clock)
        await fleet.start()
        while fleet.not_ready() is not None:
            await asyncio.sleep(0.25)
        await asyncio.sleep(2.0)
        lab = Lab(fleet, clock, random.Random(4))
        await script(lab)
        truth = await fleet.truth()
        await fleet.stop()
        verdicts = attribute(lab.log, POLICY)
        return verdicts, score(verdicts, truth, lab.log, POLICY)

    return run_virtual(main)


def outcomes(verdicts: list[Attribution]) -> list[Outcome]:
    return [a.outcome for a in verdicts]


def agrees(result: dict[str, Any], of: int) -> None:
    assert result["not_scored"] == {}
    assert result["scored"] == of
    assert result["outcome_agreement"] == 1.0, (result["outcomes"], result["disagree"])
    assert result["token_agreement"] == 1.0, result["tokens"]


def test_a_changed_system_prompt_is_named_exactly() -> None:
    """A token slips into the system prompt: app_reset, its component and token, and truth agrees."""

    async def script(lab: Lab) -> None:
        talk = lab.talk("s", lab.words(300))
        for _ in range(3):
            await lab.turn(talk)
        path, role, ids = talk.parts[0]
        talk.parts[0] = (path, role, [*ids[:41], 4, *ids[42:]])
        for _ in range(2):
            await lab.turn(talk)

    verdicts, result = played(script)
    hit = Outcome.HIT
    assert outcomes(verdicts) == [Outcome.COLD, hit, hit, Outcome.APP_RESET, hit]
    reset = verdicts[3]
    assert reset.subtype == "system_volatile_value"
    assert reset.first_divergence is not None
    assert (reset.first_divergence.path, reset.first_divergence.token_index) == ("system[0]", 41)
    assert reset.first_divergence.block_index == 2
    agrees(result, 5)


def test_idle_time_counts_from_release() -> None:
    """Just under the life after the answer's end is a hit, just over it is expiry."""

    async def script(lab: Lab) -> None:
        talk = lab.talk("s", lab.words(300))
        await lab.turn(talk)
        await asyncio.sleep(0.95 * TTL)
        await lab.turn(talk, answer=300)
        await asyncio.sleep(0.95 * TTL)
        await lab.turn(talk)
        await asyncio.sleep(1.05 * TTL)
        await lab.turn(talk)

    verdicts, result = played(script)
    assert outcomes(verdicts) == [Outcome.COLD, Outcome.HIT, Outcome.HIT, Outcome.EXPIRY]
    agrees(result, 4)


def test_another_tenants_copy_is_no_loss() -> None:
    """Two tenants with one system prompt: the second is cold, and so says the truth."""

    async def script(lab: Lab) -> None:
        system = lab.words(300)
        for tenant in ("a", "b"):
            talk = lab.talk(tenant, system, tenant)
            await lab.turn(talk)
            await lab.turn(talk)

    verdicts, result = played(script)
    assert outcomes(verdicts) == [Outcome.COLD, Outcome.HIT] * 2
    agrees(result, 4)


def test_what_capacity_took_is_unexplained() -> None:
    """Others push a conversation out of a small pool within its life: no change, cause not visible."""

    async def script(lab: Lab) -> None:
        talk = lab.talk("s", lab.words(300))
        await lab.turn(talk)
        for name in range(6):
            await lab.turn(lab.talk(f"other{name}", lab.words(400)))
        await lab.turn(talk)

    verdicts, result = played(script, blocks=120)
    assert verdicts[-1].outcome is Outcome.UNEXPLAINED
    assert verdicts[-1].subtype == "full"
    agrees(result, 8)


def test_children_that_begin_alike_at_once_are_concurrent() -> None:
    """The second child cannot read what the first is still computing."""

    async def script(lab: Lab) -> None:
        system = lab.words(1200)

        async def child(number: int) -> None:
            await asyncio.sleep(0.05 * number)
            await lab.turn(lab.talk(f"child{number}", system), user=60)

        await asyncio.gather(child(0), child(1))
        await lab.turn(lab.talk("later", system), user=60)

    verdicts, result = played(script)
    assert outcomes(verdicts) == [Outcome.COLD, Outcome.CONCURRENT, Outcome.HIT]
    agrees(result, 3)


def test_a_killed_worker_is_never_an_app_reset() -> None:
    """What died with a worker is unexplained from outside, and the truth's reason calls for that."""

    async def script(lab: Lab) -> None:
        talk = lab.talk("s", lab.words(300))
        await lab.turn(talk)
        await lab.fleet.kill(0)
        await asyncio.sleep(5.0)
        await lab.turn(talk)

    verdicts, result = played(script)
    assert outcomes(verdicts) == [Outcome.COLD, Outcome.UNEXPLAINED]
    agrees(result, 2)


def test_many_conversations_at_once() -> None:
    """Twenty conversations on two workers: no reset is claimed, and truth agrees with nearly every token."""

    async def script(lab: Lab) -> None:
        system = lab.words(250)

        async def one(number: int) -> None:
            talk = lab.talk(f"s{number}", system)
            await asyncio.sleep(lab.rng.uniform(0, 30))
            for _ in range(3):
                await lab.turn(talk, user=lab.rng.randrange(40, 200), answer=lab.rng.randrange(20, 90))
                await asyncio.sleep(lab.rng.uniform(1, 20))

        await asyncio.gather(*(one(number) for number in range(20)))

    verdicts, result = played(script, blocks=900, workers=2)
    assert Outcome.APP_RESET not in outcomes(verdicts)
    assert result["scored"] == 60
    assert result["outcome_agreement"] >= 0.97, (result["outcomes"], result["disagree"])
    assert result["token_agreement"] >= 0.99, result["tokens"]
