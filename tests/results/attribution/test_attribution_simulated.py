"""Attribution against a small block cache whose every decision is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.attribution.attribute import attribute
from results.attribution.observed import Component, Observed, token_hashes
from results.attribution.policies import headrace
from results.attribution.rollup import rollup
from results.attribution.truth import score
from results.attribution.verdict import Attribution, Outcome

BLOCK, TTL = 16, 100.0
POLICY = headrace(BLOCK, ttl_s=TTL)
MISSES = {Outcome.APP_RESET, Outcome.EXPIRY, Outcome.BOUNDARY, Outcome.UNEXPLAINED}


@dataclass
class Part:
    """A component with its token ids; ``mask`` stands for what is left when numbers are masked."""

    path: str
    kind: str
    role: str | None
    ids: list[int]
    mask: str


@dataclass
class Cache:
    """Blocks of 16, published at the first token (prompt) and at the end (answer), gone TTL after the
    last release. No eviction by capacity."""

    released: dict[int, float] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    computing: list[tuple[float, set[int]]] = field(default_factory=list)

    def serve(self, ids: Sequence[int], answer: Sequence[int], now: float, first: float, end: float) -> Any:
        """``(tokens read, misses)`` of one request."""
        blocks = _chain(ids)
        usable = blocks[: (len(ids) - 1) // BLOCK]
        hit = 0
        while hit < len(usable) and self._resident(usable[hit], now):
            hit += 1
        reasons = [self._why(block, now, index >= len(usable)) for index, block in enumerate(blocks)][hit:]
        misses = [
            {"reason": reason, "first_block": hit + i, "blocks": 1, "tokens": BLOCK}
            for i, reason in enumerate(reasons)
        ]
        if rest := len(ids) % BLOCK:
            misses.append({"reason": "below_block", "first_block": len(blocks), "blocks": 1, "tokens": rest})
        held = set(_chain([*ids, *answer[:-1]]))
        self.computing.append((first, held))
        self.seen |= held
        for block in held:
            self.released[block] = max(end, self.released.get(block, 0.0))
        return hit * BLOCK, misses

    def _busy(self, block: int, now: float) -> bool:
        return any(first > now and block in held for first, held in self.computing)

    def _resident(self, block: int, now: float) -> bool:
        return block in self.released and not self._busy(block, now) and now - self.released[block] <= TTL

    def _why(self, block: int, now: float, last: bool) -> str:
        if last and self._resident(block, now):
            return "last_block_rule"
        if self._busy(block, now):
            return "being_computed"
        return "evicted_ttl" if block in self.seen else "never_computed"


def _chain(ids: Sequence[int]) -> list[int]:
    """One number per full block that names it and all before it."""
    chain, last = [], 0
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        last = hash((last, *ids[start : start + BLOCK]))
        chain.append(last)
    return chain


@dataclass
class World:
    """Sessions that talk in turn, and what was planted into them."""

    rng: random.Random
    cache: Cache = field(default_factory=Cache)
    now: float = 0.0
    log: list[Observed] = field(default_factory=list)
    truth: list[dict[str, Any]] = field(default_factory=list)
    planted: dict[str, int] = field(default_factory=dict)
    """Request id to the token that differs."""

    def tokens(self, n: int) -> list[int]:
        return [self.rng.randrange(50_000) for _ in range(n)]

    def send(self, session: str, parts: list[Part], *, at: float | None = None) -> list[int]:
        start = self.now if at is None else at
        answer = self.tokens(self.rng.randrange(70, 120))
        ids = [token for part in parts for token in part.ids]
        read, misses = self.cache.serve(ids, answer, start, start + 0.5, start + 1.0)
        request = f"r{len(self.log)}"
        self.truth.append({"id": request, "misses": misses})
        self.log.append(_observed(request, session, start, parts, ids, answer, read))
        self.now = max(self.now, start + 1.0)
        return answer


def _observed(
    request: str,
    session: str,
    start: float,
    parts: list[Part],
    ids: list[int],
    answer: list[int],
    read: int,
) -> Observed:
    components, at, said = [], 0, str(hash(tuple(answer)))
    for part in parts:
        print_ = str(hash(tuple(part.ids)))
        components.append(
            Component(part.path, part.kind, at, len(part.ids), part.role, print_, print_, part.mask)
        )
        at += len(part.ids)
    return Observed(
        id=request,
        session=session,
        ts_start=start,
        ts_first_token=start + 0.5,
        ts_end=start + 1.0,
        components=components,
        prompt_total=len(ids),
        cache_read=read,
        hashes=token_hashes(ids, 11),
        output_hashes=token_hashes(answer, 11, first=len(ids)),
        output=Component("output", "message", len(ids), len(answer), "assistant", said, said, said),
    )


@dataclass
class Session:
    name: str
    parts: list[Part]

    def say(self, world: World) -> None:
        self.add("user", world.tokens(world.rng.randrange(100, 160)))

    def add(self, role: str, ids: list[int]) -> None:
        count = sum(part.kind == "message" for part in self.parts)
        self.parts.append(Part(f"messages[{count}]", "message", role, ids, str(hash(tuple(ids)))))

    def turn(self, world: World) -> None:
        self.say(world)
        self.add("assistant", world.send(self.name, self.parts))


def _change_one(session: Session, where: int, world: World) -> int:
    """Another id at a random token of component ``where``; the index of it in the prompt."""
    part = session.parts[where]
    offset = world.rng.randrange(len(part.ids) // 2)
    ids = list(part.ids)
    ids[offset] += 50_000
    session.parts[where] = replace(part, ids=ids)
    return sum(len(p.ids) for p in session.parts[:where]) + offset


def play(seed: int, plants: str) -> World:
    """Three sessions of random turns; ``plants`` is one letter per round: r(eset) e(dit) i(dle) n(one)
    q(uickly none) t(wins that begin alike at the same time)."""
    world = World(random.Random(seed))
    system = world.tokens(200)
    sessions = [
        Session(f"s{i}", [Part("system[0]", "system", None, list(system), "system-mask")]) for i in range(3)
    ]
    for session in sessions:
        session.turn(world)
    for letter in plants:
        session = world.rng.choice(sessions)
        if letter == "i":
            world.now += world.rng.choice((1.05, 1.5, 2.0)) * TTL
            session.turn(world)
        elif letter == "t":
            shared = Part("system[0]", "system", None, world.tokens(300), f"twin{len(world.log)}")
            for twin in ("a", "b"):
                one = Session(f"twin-{twin}-{len(world.log)}", [shared])
                one.say(world)
                world.send(one.name, one.parts, at=world.now if twin == "a" else world.now - 0.9)
            world.now += 1
        else:
            world.now += world.rng.uniform(0, 0.01 if letter == "q" else 0.2) * TTL
            where = {"r": 0, "e": 1}.get(letter)
            request = f"r{len(world.log)}"
            if where is not None:
                world.planted[request] = _change_one(session, where, world)
            session.turn(world)
    return world


def _check(world: World, verdicts: list[Attribution]) -> None:
    resets = {a.id for a in verdicts if a.outcome is Outcome.APP_RESET}
    assert _fresh(world) <= resets <= world.planted.keys()
    for a in verdicts:
        if a.id in world.planted.keys() - resets:
            assert (a.outcome, a.overdetermined) == (Outcome.EXPIRY, True)
        assert a.outcome is not Outcome.UNEXPLAINED
        if a.id in resets:
            assert a.first_divergence is not None
            assert a.first_divergence.token_index == world.planted[a.id]
            assert a.first_divergence.block_index == world.planted[a.id] // BLOCK
    result = score(verdicts, world.truth, world.log, POLICY)
    assert result["outcome_agreement"] == 1.0, result["disagree"]
    assert result["token_agreement"] == 1.0, result["tokens"]
    assert result["not_scored"] == {}


def _fresh(world: World) -> set[str]:
    """Planted changes whose parent had not lapsed by then. Of the others, some are expiry with the change as
    a second cause; where another session kept the head alive, the change alone explains the miss."""
    spoken: dict[str, float] = {}
    fresh = set()
    for seen in world.log:
        if seen.id in world.planted and seen.ts_start - spoken[seen.session] <= TTL:
            fresh.add(seen.id)
        spoken[seen.session] = seen.ts_end or 0.0
    return fresh


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), plants=st.text("rein", max_size=14))
def test_planted_causes_are_found_exactly(seed: int, plants: str) -> None:
    """Every planted reset is app_reset with its token, nothing else is, and truth agrees with all."""
    world = play(seed, plants)
    _check(world, attribute(world.log, POLICY))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), turns=st.integers(0, 20))
def test_clean_replay_has_no_misses(seed: int, turns: int) -> None:
    """Without plants and within the life every request is a hit or cold."""
    world = play(seed, "q" * turns)
    assert {a.outcome for a in attribute(world.log, POLICY)} <= {Outcome.HIT, Outcome.COLD}


def test_twins_are_concurrent() -> None:
    """The second of two requests that begin alike at once is concurrent, and truth calls for that."""
    world = play(5, "ntnt")
    verdicts = attribute(world.log, POLICY)
    assert sum(a.outcome is Outcome.CONCURRENT for a in verdicts) == 2
    _check(world, verdicts)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), plants=st.text("reint", max_size=10))
def test_labels_survive_renamed_sessions_and_log_order(seed: int, plants: str) -> None:
    """A34: other session names and another order of lines change no verdict."""
    world = play(seed, plants)
    before = {a.id: (a.outcome, a.subtype, a.parent, a.ledger) for a in attribute(world.log, POLICY)}
    renamed = [replace(seen, session=f"x{seen.session}") for seen in world.log]
    random.Random(seed).shuffle(renamed)
    after = {a.id: (a.outcome, a.subtype, a.parent, a.ledger) for a in attribute(renamed, POLICY)}
    assert after == before


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), plants=st.text("rei", max_size=8))
def test_unrelated_lineages_do_not_disturb(seed: int, plants: str) -> None:
    """A34: sessions of another tenant between ours change no verdict of ours."""
    world, other = play(seed, plants), play(seed + 1, plants)
    ours = {a.id: (a.outcome, a.ledger) for a in attribute(world.log, POLICY)}
    strangers = [
        replace(seen, id=f"o{seen.id}", session=f"o{seen.session}", workspace="other") for seen in other.log
    ]
    both = {a.id: (a.outcome, a.ledger) for a in attribute([*world.log, *strangers], POLICY)}
    assert {name: both[name] for name in ours} == ours


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), plants=st.text("reint", max_size=10))
def test_rollup_adds_up(seed: int, plants: str) -> None:
    """The ledger sums to all prompt tokens, and missed tokens by cause to what the misses missed."""
    world = play(seed, plants)
    verdicts = attribute(world.log, POLICY)
    summary = rollup(verdicts)
    missed = sum(a.missed or 0 for a in verdicts if a.outcome in MISSES)
    assert sum(summary["ledger"].values()) == sum(a.prompt for a in verdicts)
    assert sum(summary["missed_tokens"].values()) == missed
    assert sum(group["missed"] for group in summary["by_subtype"].values()) == missed
    assert sum(summary["outcomes"].values()) == len(verdicts) == summary["requests"]
    assert rollup(list(reversed(verdicts))) == summary


@pytest.mark.parametrize(("letter", "subtype"), [("r", "system_volatile_value"), ("e", "history_edited")])
def test_subtype_of_a_planted_change(letter: str, subtype: str) -> None:
    """A changed value in the system prompt is volatile where its mask is equal, a message is edited."""
    world = play(3, letter)
    (verdict,) = [a for a in attribute(world.log, POLICY) if a.id in world.planted]
    assert (verdict.outcome, verdict.subtype) == (Outcome.APP_RESET, subtype)
