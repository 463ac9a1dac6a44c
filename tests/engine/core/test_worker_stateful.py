"""Random lives of a worker: whatever happens in whatever order, K1 to K9 hold after every message and step.

``SHORT`` and ``LONG`` seeded lives and ``EXAMPLES`` that Hypothesis searches: together 10,000 interleavings.
Many more, from seeds never tried: ``HEADRACE_LIVES=200000 pytest tests/engine/core/test_worker_stateful.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from engine.sched import controls
from tests.engine.core.chaos import ACTIONS, CONTROLS, WEIGHTS, Life

T = TypeVar("T")
SHORT, LONG, EXAMPLES = 9500, 200, 300
PARTS = 10
MORE = int(os.environ.get("HEADRACE_LIVES", "0"))


class Drawn:
    """Dice that Hypothesis throws, so that it can shrink what it found."""

    def __init__(self) -> None:
        self.data: st.DataObject | None = None

    def randint(self, a: int, b: int) -> int:
        assert self.data is not None
        return self.data.draw(st.integers(a, b))

    def choice(self, seq: Sequence[T]) -> T:
        assert self.data is not None
        return self.data.draw(st.sampled_from(seq))


class Machine(RuleBasedStateMachine):
    """The bench audits after every message and step; the oracle checks every read."""

    bench: type

    @initialize(data=st.data())
    def start(self, data):
        self.dice = Drawn()
        self.dice.data = data
        self.life = Life(self.bench, self.dice)

    @rule(data=st.data(), name=st.sampled_from(tuple(WEIGHTS)))
    def act(self, data, name):
        self.dice.data = data
        self.life.act(name)

    def teardown(self):
        if hasattr(self, "life"):
            self.life.settle()


def test_hypothesis_finds_no_life_that_breaks(bench):
    """Any sequence of actions keeps every invariant and gives every request its own text."""
    Machine.bench = bench
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None, derandomize=True),
    )


def live(bench, seed, actions):
    """One seeded life. The failing seed is in the message, and the call with it is the reproduction."""
    try:
        Life(bench, random.Random(seed)).run(actions)
    except Exception as error:
        error.add_note(f"Life(bench, random.Random({seed})).run({actions})")
        raise


@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_short_lives(bench, part):
    """Few actions each, so that many policies, sizes and orders are met."""
    for seed in range(part, SHORT, PARTS):
        live(bench, seed, 12)


def test_long_lives(bench):
    """Many actions each, so that what goes wrong late has time to."""
    for seed in range(LONG):
        live(bench, seed, 60)


@pytest.mark.skipif(not MORE, reason="set HEADRACE_LIVES to a number of lives")
def test_lives_never_tried_before(bench):
    """New seeds each time."""
    first = random.randrange(1 << 40)
    for seed in range(first, first + MORE):
        live(bench, seed, 24)


def test_enough_of_them():
    """CI sees 10,000 interleavings, every action exists, and every control is turned in them."""
    assert SHORT + LONG + EXAMPLES >= 10_000
    assert all(hasattr(Life, name) for name in ACTIONS)
    turned = {name for change in CONTROLS for name in change} | {"admission", "preemption"}
    assert turned == controls.CONTROLS.keys()
