"""The proof of the proof: the engine is broken on purpose, bug by bug, and some random life must notice.

Each bug is one that somebody could write, or did (the cases name the reports). ``found`` is what the oracle,
the audit or the bench says of it; a bug that is noticed for another reason is not counted as found.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.kv.blocks import BlockPool
from engine.kv.prefix_cache import Match, PrefixCache
from engine.kv.tiers import Tiers
from engine.request import Finish
from engine.sched.accounts import Accounts
from engine.sched.adapters import Adapters
from engine.sched.memory import Memory
from engine.sched.roster import Roster
from engine.sched.sequence import Sequence, State
from engine.sched.step import Step
from engine.sched.steps import Steps
from engine.sched.transfers import Transfers
from tests.engine.core.chaos import Life

TIERED = {"host": 4, "disk": 6, "moves": 6, "blocks": 10, "policy": "prompt"}
LIVES = 200
ACTIONS = 60
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks the engine until the test's end."""

    plant: Callable[[Patch, type[Any]], None]
    found: str
    settings: dict[str, Any] = field(default_factory=dict)


BUGS: dict[str, Bug] = {}


def bug(found: str, **settings: Any) -> Callable[[Callable[[Patch, type[Any]], None]], None]:
    """Register a planter under its name."""

    def register(plant: Callable[[Patch, type[Any]], None]) -> None:
        BUGS[plant.__name__] = Bug(plant, found, settings)

    return register


def wrap(patch: Patch, owner: type[Any], name: str, around: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``around(original, self, ...)``."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *a, **k: around(original, *a, **k))


# -- the cache says what is not true --------------------------------------------------------------


@bug("K4: .* is not computed|never written|this step writes")
def publish_before_commit(patch, bench):
    """C5: a prompt's blocks can be hit from its admission on."""

    def take(original, self, sequence, *more):
        original(self, sequence, *more)
        before, sequence.computed = sequence.computed, len(sequence.tokens)
        self.publish(sequence, more[-1])
        sequence.computed = before

    wrap(patch, Memory, "take", take)


@bug("K4: .* is not computed|never written")
def publish_the_last_partial_block(patch, bench):
    """A block counts as full when its first slot is."""

    def publish(original, self, sequence, *more):
        before = sequence.computed
        sequence.computed = min(-(-before // 4) * 4, len(sequence.tokens) // 4 * 4)
        original(self, sequence, *more)
        sequence.computed = before

    wrap(patch, Memory, "publish", publish)


@bug("never written")
def publish_a_failed_row(patch, bench):
    """A row that came out as no number is taken for a good one."""

    def commit(original, self, plan, result, now):
        for index in result.failed:
            sequence, row = self._flight.sequences[index], plan.rows[index]
            if sequence.state is State.RUNNING:
                sequence.computed = row.start + len(row.tokens)
                self.memory.publish(sequence, now)
        original(self, plan, result, now)

    wrap(patch, Steps, "commit", commit)


@bug("never written")
def publish_a_failed_step(patch, bench):
    """E16: a step that raised is published all the same."""

    def step_failed(original, self, plan, error, now):
        for sequence, row in zip(self._flight.sequences, plan.rows, strict=True):
            if sequence.state is State.RUNNING:
                sequence.computed = row.start + len(row.tokens)
                self.memory.publish(sequence, now)
        original(self, plan, error, now)

    wrap(patch, Steps, "step_failed", step_failed)


@bug("not its own|different prefixes", digest_bits=8, blocks=24)
def hit_without_verification(patch, bench):
    """C8: the key alone decides, and keys are short."""
    patch.setattr(PrefixCache, "_find", lambda self, d, parent, data, i: self._map.get(d[: self._key_bytes]))


@bug("different prefixes|not its own")
def tenants_share_a_root(patch, bench):
    """C7: the isolation key is left out of the namespace."""
    original = bench.root
    patch.setattr(bench, "root", lambda self, tenant="a", **more: original(self, "a", **more))


@bug("different prefixes|not its own")
def adapter_left_out_of_the_root(patch, bench):
    """C7: K/V of an adapter is read by the base model."""
    original = bench.root
    patch.setattr(
        bench, "root", lambda self, tenant="a", salt=None, adapter=None: original(self, tenant, salt)
    )


@bug("stuck|does not cover|not idle")
def full_prompt_hit(patch, bench):
    """C9: the last-token rule is forgotten, and nothing is left to compute."""

    def match(original, self, root, digests, tokens):
        found, parent = [], root
        for index, digest in enumerate(digests):
            block = self._find(digest, parent, tokens.tobytes(), index)
            if block is None:
                break
            found.append(block)
            parent = digest
        return Match(tuple(found), len(found))

    wrap(patch, PrefixCache, "match", match)


@bug("K4")
def eviction_leaves_the_digest(patch, bench):
    """A block is handed out and still found."""
    patch.setattr(PrefixCache, "evicted", lambda self, block, now: None)


@bug("removed what was not stored|K4|digests")
def loss_of_a_copy_is_told(patch, bench):
    """C5: one of two copies goes, and the subscriber hears that the content is gone."""

    def forget(original, self, block, *more):
        content = self.content[block]
        if content.digest[: self._key_bytes] in self._copies:
            self.events.removed(content.digest, "capacity")
        original(self, block, *more)

    wrap(patch, PrefixCache, "_forget", forget)


@bug("stored|parent|digests|K4")
def clear_lets_running_ones_publish(patch, bench):
    """What runs through a clear publishes the tail of a chain whose head is gone."""

    def clear(self, running):
        self.cache.clear()
        for sequence in running:
            sequence.expects = (0, 0)

    patch.setattr(Memory, "clear", clear)


# -- blocks in two hands --------------------------------------------------------------------------


@bug("handed on while|was free while")
def free_without_fence(patch, bench):
    """C3: a cancelled request's blocks are free while the step still writes them."""
    wrap(
        patch,
        BlockPool,
        "release",
        lambda original, self, table, now, fence=None, *more, **named: original(
            self, table, now, None, *more, **named
        ),
    )


@bug("K3|nobody holds")
def hit_without_reference(patch, bench):
    """A hit block can be evicted under its reader."""
    patch.setattr(PrefixCache, "take", lambda self, blocks, now: None)


@bug("K[123]")
def release_twice(patch, bench):
    """C3: freed by the cancel and again by the finish."""

    def leave(original, self, sequence, now, fence=None, **more):
        table = list(sequence.table)
        original(self, sequence, now, fence, **more)
        if fence is not None:
            self.pool.release(table, now, fence)

    wrap(patch, Memory, "leave", leave)


@bug("K[123]")
def hit_stays_in_its_free_list(patch, bench):
    """A referenced block can be handed out again."""

    def acquire(self, blocks):
        for block in blocks:
            self.referenced += self.ref[block] == 0
            self.ref[block] += 1

    patch.setattr(BlockPool, "acquire", acquire)


@bug("nobody holds|does not cover")
def victim_stays_in_the_plan(patch, bench):
    """A preempted request's row is computed over blocks that it has given back."""
    patch.setattr(Step, "take_back", lambda self, sequence: None)


@bug("K[13]")
def one_block_lost_per_request(patch, bench):
    """C24, inference-sim#1115: the last block of a table is not given back."""

    def leave(original, self, sequence, *more, **named):
        sequence.table = sequence.table[:-1]
        original(self, sequence, *more, **named)

    wrap(patch, Memory, "leave", leave)


@bug("slots of another row|different prefixes|not its own|never written")
def choices_share_the_partial_block(patch, bench):
    """E36: the block in which the prompt ends is not copied for each choice."""

    def fork(original, self, choice):
        made = original(self, choice)
        made.table, made.original = self.table, None
        return made

    wrap(patch, Sequence, "fork", fork)


@bug("K3")
def choices_without_references(patch, bench):
    """E36: the shared blocks are counted once for all choices."""

    def fork(original, self, sequence, choice):
        made = original(self, sequence, choice)
        for block in made.blocks:
            self.pool.ref[block] -= 1
        return made

    wrap(patch, Memory, "fork", fork)


# -- below the device -----------------------------------------------------------------------------


@bug("never written", **TIERED)
def a_torn_file_is_taken_for_whole(patch, bench):
    """E45: what did not arrive counts as arrived."""
    wrap(patch, Transfers, "landed", lambda original, self, plan, lost, now: original(self, plan, (), now))


@bug("never written", **TIERED)
def a_restore_is_not_waited_for(patch, bench):
    """E45: a request runs on blocks that no step has loaded."""

    def take(original, self, sequence, *more):
        original(self, sequence, *more)
        if sequence.loading is not None:
            sequence.computed = sequence.loading.computed
            self.transfers.forget(sequence)

    wrap(patch, Memory, "take", take)


@bug("K3|K4|differ|never written", **TIERED)
def a_restore_holds_nothing(patch, bench):
    """E45: what a restore has chosen may be pushed out before it is read."""
    patch.setattr(Tiers, "pin", lambda self, entry: None)


@bug("K[1-5]|different prefixes|not its own|never written", **(TIERED | {"preemption": "swap", "swap": 6}))
def a_swap_slot_has_two_tenants(patch, bench):
    """E26: the slots of a swapped request are free as soon as it is out."""

    def swap_out(original, self, victim):
        step = original(self, victim)
        if victim.swapped is not None:
            self.free_slots += [source.slot for source in victim.swapped.sources if source.slot]
        return step

    wrap(patch, Transfers, "swap_out", swap_out)


@bug("different prefixes|not its own|never written", preemption="swap", swap=20, policy="prompt")
def a_swapped_request_comes_back_one_token_ahead(patch, bench):
    """E26: it believes in K/V that was never computed."""

    def swap_out(original, self, victim):
        step = original(self, victim)
        if victim.swapped is not None and victim.left > 1:
            victim.swapped.computed += 1
        return step

    wrap(patch, Transfers, "swap_out", swap_out)


# -- adapters -------------------------------------------------------------------------------------


@bug("not resident", max_adapters=1)
def an_adapter_in_use_is_dropped(patch, bench):
    """E39: the least recently used one goes, running or not."""
    patch.setattr(Adapters, "_idle", lambda self, running: next(iter(self._resident), None))


# -- what a sequence believes of itself -----------------------------------------------------------


@bug("never written")
def resume_where_it_stood(patch, bench):
    """A preempted request goes on as if its K/V were still there."""

    def take(original, self, sequence, *more):
        before = sequence.most_computed
        original(self, sequence, *more)
        sequence.computed = max(sequence.computed, min(before, len(sequence.tokens) - 1))

    wrap(patch, Memory, "take", take)


@bug("never written")
def one_token_too_many(patch, bench):
    """A chunk counts for one token more than it computed."""

    def computed(original, self, sequence, row, *more):
        original(self, sequence, row, *more)
        sequence.computed += not row.samples

    wrap(patch, Accounts, "computed", computed)


@bug("different prefixes|never written")
def table_in_the_wrong_order(patch, bench):
    """Hits are appended after the fresh blocks."""
    wrap(
        patch,
        Sequence,
        "grow",
        lambda original, self, blocks, *more: original(self, list(reversed(blocks)), *more),
    )


# -- the books ------------------------------------------------------------------------------------


@bug("K7")
def promise_kept_forever(patch, bench):
    """C14, E24: a reservation is not given back when its block is held."""

    def grow(original, self, sequence, tokens, now):
        before = len(sequence.table)
        missing = original(self, sequence, tokens, now)
        self.promised += len(sequence.table) - before
        return missing

    wrap(patch, Memory, "grow", grow)


@bug("two terminal events|K9")
def ended_twice(patch, bench):
    """C3: a cancel after the finish ends the request again."""

    def finish(original, self, sequence, reason, now, error=None):
        original(self, sequence, reason, now, error)
        if reason is Finish.LENGTH:
            self.outbox.append(self.outbox[-1])

    wrap(patch, Roster, "finish", finish)


@bug("submitted")
def never_ended(patch, bench):
    """E33: an expired request is gone without a word."""
    wrap(
        patch,
        Roster,
        "_reclaimed",
        lambda original, self, done, steps, now: (
            None if done.reason is Finish.EXPIRED else original(self, done, steps, now)
        ),
    )


@bug("K4|K1")
def expired_block_keeps_its_digest(patch, bench):
    """E15: the life is over, the pool knows, the cache does not."""

    def expire(self, now):
        for block in self.pool.cached.expired(now):
            self.pool.unmark(block)

    patch.setattr(PrefixCache, "expire", expire)


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_is_found(bench, monkeypatch, name):
    """Some life out of a few notices, and says what is wrong."""
    planted = BUGS[name]
    planted.plant(monkeypatch, bench)
    for seed in range(LIVES):
        try:
            Life(bench, random.Random(seed), **planted.settings).run(ACTIONS)
        except Exception as error:
            if re.search(planted.found, f"{type(error).__name__}: {error}"):
                return
            raise
    pytest.fail(f"{LIVES} lives with {name} noticed nothing")


@pytest.mark.parametrize("settings", [{}, {"digest_bits": 8, "blocks": 24}], ids=["as is", "short keys"])
def test_without_a_bug_nobody_complains(bench, settings):
    """The same lives over the engine as it is."""
    for seed in range(LIVES):
        Life(bench, random.Random(seed), **settings).run(ACTIONS)


def test_there_are_enough_bugs():
    """At least twelve; each with a sentence that says what it is."""
    assert len(BUGS) >= 12
    assert all(planted.plant.__doc__ for planted in BUGS.values())
