"""What is kept once for all who decode in lockstep agrees with what each of them is, at every moment of a
life, also next to rows that are never in lockstep and in blocks of any size."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict
from itertools import groupby

import pytest

from engine import messages as m
from engine.request import Sampling
from engine.sched.lockstep import Lockstep
from tests.engine.core.chaos import ACTIONS, ADAPTERS, DRAWN, Life
from tests.engine.core.test_lockstep import empty, rounded

LIVES, PARTS = 120, 2
MANY_ENDS = tuple(range(0, DRAWN, 9))
OF_BLOCKS = "block"
"""Metrics of blocks may differ: which of two equal copies is cached first, and so which life it has."""


class Mixed(Life):
    """Rows of every kind in one step: plain ones, with penalties, an adapter or logprobs, many choices, many
    ends. A row that fails is chosen by whose it is, since members come first in a plan."""

    def _submit(self) -> None:
        dice, b = self.dice, self.bench
        adapter = dice.choice((None, None, None, None, ADAPTERS[0], ADAPTERS[2]))
        self.spaces[b.next_id + 1] = f"a/{adapter}".encode()
        family = dice.choice((0, 100))
        b.submit(
            [family + index for index in range(dice.randint(1, 20))] + [3000 + b.next_id],
            dice.choice((1, 2, 6, 25, 40)),
            rank=dice.randint(0, 2),
            root=b.root(adapter=adapter),
            tenant="a",
            adapter=adapter,
            client_id=f"c{b.next_id}",
            n=dice.choice((1, 1, 2, 5)),
            sampling=Sampling(
                temperature=dice.choice((0.0, 1.0)),
                seed=dice.randint(0, 3),
                ignore_eos=True,
                stop_ids=dice.choice(((), (), MANY_ENDS)),
                logprobs=dice.choice((None, None, 1)),
                repetition_penalty=dice.choice((1.0, 1.0, 1.3)),
            ),
        )

    def spoil(self) -> None:
        if self.bench.flying is not None and self.bench.flying.rows:
            whose = [(row.id, row.choice) for row in self.bench.flying.rows]
            self.bench.end(failed=(whose.index(self.dice.choice(sorted(whose))),))


def mixed(bench, seed):
    dice = random.Random(seed)
    size = dice.choice((1, 1, 2, 3, 8))
    settings = {
        "block_size": size,
        "blocks": dice.choice((24, 60)) * 4 // size,
        "cache": dice.choice((True, False)),
    }
    return Mixed(bench, dice, **settings), dice


def right(scheduler):
    """Every column, table and sum of the lockstep, reckoned again from its members."""
    lockstep, running = scheduler.lockstep, scheduler.running.values()
    members = [sequence for sequence in running if sequence.lockstep is lockstep]
    assert lockstep.sequences == members
    assert all(len(column) == len(members) for column in lockstep._columns)
    for place, s in enumerate(members):
        assert s.decoding
        assert s.rem > 0
        assert (lockstep._rows[place], s.member_row.table) == (s.member_row, s.table)
        assert (lockstep._lasts[place], lockstep._orders[place]) == (s.tokens[-1], s.order)
        assert s in lockstep._phases[(lockstep.steps - s.computed) % s.block_size]
        assert s in lockstep._ends[lockstep.steps + s.rem]
    for table in (lockstep._phases, lockstep._ends.values()):
        assert sum(map(len, table)) == len(members)
    assert lockstep._stops == Counter(stop for s in members for stop in s.stops)
    assert +lockstep.classes == Counter(s.request.class_ for s in members)
    for s in running:
        assert s.job.members == sum(choice.lockstep is not None for choice in s.job.choices)
        assert s.lockstep in (None, lockstep)


def own(bench):
    """Every row of the step in flight says what its sequence is, with all tokens where its draw needs them;
    those of an adapter are next to each other."""
    running = bench.worker.scheduler.running
    for row in bench.flying.rows:
        s = running[row.id, row.choice]
        whole = row.start + len(row.tokens) == len(s.tokens)
        assert (row.start, row.table) == (s.computed, s.table)
        assert list(row.tokens) == list(s.tokens[row.start : row.start + len(row.tokens)])
        assert (row.samples, row.draw, row.adapter) == (whole, s.generated, s.request.adapter)
        assert (row.known is not None) == (whole and s.looks_back)
        assert row.known is None or list(row.known) == list(s.tokens)
    adapters = [adapter for adapter, _ in groupby(row.adapter for row in bench.flying.rows) if adapter]
    assert len(adapters) == len(set(adapters))


def test_its_books_are_right_at_every_moment(bench):
    """Between any two things that may happen, in flight or not."""
    most = 0
    for seed in range(LIVES):
        life, dice = mixed(bench, seed)
        scheduler = life.bench.worker.scheduler
        for _ in range(30):
            flying = life.bench.flying
            life.act(dice.choice(ACTIONS))
            right(scheduler)
            if life.bench.flying not in (None, flying):
                own(life.bench)
            most = max(most, len(scheduler.lockstep))
        life.settle()
        assert empty(scheduler.lockstep)
    assert most > 5, "hardly anybody was ever in lockstep: this looks at nothing"


def told(life):
    """Texts, ends, logprobs, truths, times and metrics, but for which copy of a block is the cached one."""
    b = life.bench
    truths = {id: asdict(done.truth) | {"created_cache_tokens": 0} for id, done in b.done.items()}
    ends = {id: (done.error, truths[id]) for id, done in b.done.items()}
    logprobs = [
        (said.id, said.choice, said.logprobs)
        for said in b.said
        if isinstance(said, m.TokensOut) and said.logprobs
    ]
    metrics = {name: value for name, value in b.worker.meter.snapshot().items() if OF_BLOCKS not in name}
    return b.choices, ends, sorted(logprobs, key=lambda each: each[:2]), rounded(metrics), b.now


@pytest.mark.parametrize("part", range(PARTS))
def test_next_to_rows_that_are_never_in_it(bench, part, monkeypatch):
    """The same life with and without, whatever is in its steps beside the members."""
    beside = 0
    computed = Lockstep.computed

    def counting(self, plan):
        nonlocal beside
        beside += plan.together < len(plan.rows)
        computed(self, plan)

    monkeypatch.setattr(Lockstep, "computed", counting)
    for seed in range(part, LIVES, PARTS):
        life, _ = mixed(bench, seed)
        life.run(30)
        with monkeypatch.context() as patch:
            patch.setattr(Lockstep, "takes", lambda self, sequence: False)
            alone, _ = mixed(bench, seed)
            alone.run(30)
        assert told(life) == told(alone), f"seed {seed}"
    assert beside > LIVES / PARTS, "members were hardly ever beside others: this compares little"


def test_a_hold_that_catches_the_other_choice_stops_the_member_too(bench, tokens):
    """It came while a step was in flight, so that one choice is in lockstep when the other one is caught."""
    b = bench(blocks=16, chunk=2, policy="prompt", cache=False)
    id = b.submit(tokens(6), 20, n=2)
    running, lockstep = b.worker.scheduler.running, b.worker.scheduler.lockstep
    while len(lockstep) < 2:
        b.step()
    b.send(m.Ballast(16))
    while (id, 1) in running:
        b.step()
    b.send(m.Ballast(0))
    while (id, 1) not in running or not lockstep:
        b.step()
    b.begin()
    assert [sequence.choice for sequence in lockstep.sequences] == [0]
    b.send(m.Hold(1, f"prefill:{running[id, 1].chunks + 1}"))
    b.end()
    assert running[id, 0].held == 1
    assert b.begin() is None
    assert not lockstep
    b.send(m.Release(1))
    b.run()
    assert [len(b.choices[id, choice]) for choice in (0, 1)] == [20, 20]
    b.taught()
    b.drained()
