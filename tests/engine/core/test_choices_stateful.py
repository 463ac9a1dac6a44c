"""Random lives in which most requests have several choices: forks, copies, preemption of single choices."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import messages as m
from engine.request import Finish, Sampling
from engine.runner.base import Move, Transfer
from engine.runner.simulated import Poisoned
from engine.sched.memory import Memory
from engine.sched.sequence import Sequence
from tests.engine.core.chaos import ENDS, SECOND, Life
from tests.engine.core.test_worker_stateful import Drawn

ACTIONS = (
    *(("submit",) * 12),
    *(("tick",) * 34),
    *(("steps",) * 6),
    *(("stop_choice",) * 5),
    *(("cancel", "wait", "ballast") * 3),
    *("fail", "spoil", "configure", "clear", "hold", "release", "release", "recall"),
)
LIVES = 160
PARTS = 8


class Forking(Life):
    """Requests of up to four choices that may be stopped one by one, in a pool that is too small."""

    def submit(self) -> None:
        dice, b = self.dice, self.bench
        family, length = dice.choice((0, 100, 200)), dice.randint(1, 14)
        self.spaces[b.next_id + 1] = b"a/None"
        b.submit(
            [family + index for index in range(length)],
            dice.randint(1, 9),
            n=dice.choice((1, 2, 2, 3, 4)),
            rank=dice.randint(0, 1),
            client_id=f"c{b.next_id}",
            deadline=dice.choice((None, None, None, b.now + SECOND // 10)),
            sampling=Sampling(temperature=1.0, seed=dice.randint(0, 3), ignore_eos=True, stop_ids=ENDS),
        )

    def stop_choice(self) -> None:
        """Any choice, also one that is not there yet, has ended or never was."""
        id, choice = self.dice.randint(1, self.bench.next_id + 1), self.dice.randint(0, 3)
        self.stopped.add(id)
        self.bench.send(m.Cancel(id, Finish.STOP, choice))

    def counts_blocks(self) -> None:
        """What a request is said to hold is what its choices do hold, common blocks counted once."""
        for job in self.bench.worker.roster.active.values():
            assert job.blocks == len({block for choice in job.choices for block in choice.blocks})
            assert job.blocks <= job.truth.blocks_peak

    def settle(self) -> None:
        super().settle()
        b = self.bench
        for id, done in b.done.items():
            request = b.requests[id]
            by_itself = done.reason in (Finish.STOP, Finish.LENGTH) and id not in self.stopped
            if by_itself and done.truth.generated:
                ended = {choice for of, choice in b.ended if of == id}
                assert len(ended) == request.n - 1, "one end for each choice, the last being the request's"
            assert done.truth.blocks_peak <= b.worker.pool.size


def live(bench, dice, actions=60):
    life = Forking(bench, dice)
    for _ in range(actions):
        life.act(dice.choice(ACTIONS))
        life.counts_blocks()
    life.settle()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), actions=st.integers(1, 40))
def test_any_life_with_forks(bench, data, actions):
    """Hypothesis looks for a life that breaks something, and shrinks it."""
    dice = Drawn()
    dice.data = data
    live(bench, dice, actions)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_lives_with_forks(bench, part):
    """Whatever happens to requests with several choices, K1 to K9 hold and every text is its key's."""
    for seed in range(part, LIVES, PARTS):
        try:
            live(bench, random.Random(seed))
        except BaseException as error:
            error.add_note(f"life {seed}")
            raise


def fork_without_references(patch):
    """The other choices read blocks that may be given away under them."""

    def fork(self, sequence, choice):
        fork = original(self, sequence, choice)
        self.pool.release(fork.table, 0)
        return fork

    original = Memory.fork
    patch.setattr(Memory, "fork", fork)


def forget_the_copy(patch):
    """They write to a fresh block and read the beginning of it."""
    patch.setattr(Sequence, "copy", property(lambda self: Transfer(Move.COPY, 0, 0)))


def let_go_of_the_original_at_once(patch):
    """The partial block is given back before its copies are made."""

    def fork(self, sequence, choice):
        fork = original(self, sequence, choice)
        if fork.original is not None:
            self.pool.release([fork.original], 0)
        return fork

    original = Memory.fork
    patch.setattr(Memory, "fork", fork)


def write_to_the_original(patch):
    """The partial block is taken for one's own, as the full ones are."""

    def grow(self, blocks, in_common=0):
        original(self, blocks, in_common)
        if self.original is not None and len(self.table) == self.prompt // self.block_size + 1:
            self.table = (*self.table[:-1], self.original)

    original = Sequence.grow
    patch.setattr(Sequence, "grow", grow)


@pytest.mark.parametrize(
    "plant",
    [
        fork_without_references,
        forget_the_copy,
        let_go_of_the_original_at_once,
        write_to_the_original,
    ],
)
def test_every_bug_is_found(bench, monkeypatch, plant):
    """Forking broken on purpose: some life out of a few notices."""
    plant(monkeypatch)

    def lives():
        for seed in range(40):
            live(bench, random.Random(seed))

    with pytest.raises((AssertionError, Poisoned)):
        lives()
