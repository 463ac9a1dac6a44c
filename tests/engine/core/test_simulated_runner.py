"""The simulated runner: text from KV slots, exact durations, and the poison oracle."""

from __future__ import annotations

from array import array
from statistics import fmean

import pytest

from engine.config import CostModel
from engine.request import Sampling
from engine.runner.base import Row, StepPlan
from engine.runner.simulated import Poisoned, SimulatedRunner

COST = CostModel(a=0.01, b=0.001, c=0.004, d=1e-5, e=1e-6)


def runner(**more):
    made = SimulatedRunner(COST, **more)
    made.allocate(16, 4)
    return made


def row(tokens, table, start=0, id=1, samples=True, **more):
    return Row(id, start, array("I", tokens), tuple(table), samples, **more)


def plan(*rows, step=0):
    return StepPlan(step, rows)


def test_chunks_do_not_change_the_text():
    """Any cutting of a prompt into chunks draws the same token."""
    tokens = [7, 8, 9, 10, 11, 12]
    whole = runner().execute(plan(row(tokens, [1, 2]))).tokens
    for cut in range(1, 6):
        r = runner()
        assert r.execute(plan(row(tokens[:cut], [1, 2], samples=False))).tokens == (None,)
        assert r.execute(plan(row(tokens[cut:], [1, 2], start=cut), step=1)).tokens == whole


def test_text_depends_on_all_tokens_and_their_order():
    """Other tokens, or the same in another order, draw another token (with these values)."""
    drawn = {
        runner().execute(plan(row(tokens, [3]))).tokens
        for tokens in ([1, 2, 3], [3, 2, 1], [1, 2, 4], [1, 2])
    }
    assert len(drawn) == 4


def test_worker_and_seed_do_not_change_the_text():
    """Every worker is the same model."""
    drawn = {runner(seed=s, worker=w).execute(plan(row([5, 6], [1]))).tokens for s in (0, 1) for w in (0, 1)}
    assert len(drawn) == 1


def test_sampled_draws_are_keyed_by_seed_and_index():
    """With a temperature the token depends on (seed, index) and repeats for equal ones."""

    def draw(seed, index):
        sampling = Sampling(temperature=1.0, seed=seed)
        return runner().execute(plan(row([5, 6], [1], sampling=sampling, draw=index))).tokens

    assert draw(1, 0) == draw(1, 0)
    assert len({draw(seed, index) for seed in (1, 2) for index in (0, 1)}) == 4


def test_duration_is_the_cost_model():
    """Without noise a step takes exactly the terms of the cost model."""
    r = runner()
    first = r.execute(plan(row([1, 2, 3, 4], [1], id=1)))
    assert first.duration == pytest.approx(0.01 + 4 * 0.001 + 1e-6 * 4 * 2)
    mixed = plan(row([9], [1, 2], start=4, id=1, draw=1), row([1, 2], [3], id=2), step=1)
    assert r.execute(mixed).duration == pytest.approx(
        0.01 + (0.004 + 1e-5 * 5) + 2 * 0.001 + 1e-6 * 2 * 1,
    )


def test_noise_is_keyed_and_has_mean_one():
    """Noise repeats for (seed, worker, step), differs otherwise, and leaves the mean as it is."""
    cost = CostModel(sigma=0.3)

    def duration(step, worker=0, seed=0):
        r = SimulatedRunner(cost, seed=seed, worker=worker)
        r.allocate(4, 4)
        return r.execute(plan(row([1], [1]), step=step)).duration

    assert duration(5) == duration(5)
    assert len({duration(5), duration(6), duration(5, worker=1), duration(5, seed=1)}) == 4
    exact = SimulatedRunner(CostModel())
    exact.allocate(4, 4)
    quiet = exact.execute(plan(row([1], [1]))).duration
    assert fmean(duration(step) for step in range(1500)) == pytest.approx(quiet, rel=0.05)


class TestPoison:
    """Whatever reads anything but its own, earlier written prefix raises."""

    def test_unwritten(self):
        """A hit on a block that nobody has computed."""
        with pytest.raises(Poisoned, match="never written"):
            runner().execute(plan(row([5], [1, 2], start=4)))

    def test_mixed_prefixes(self):
        """Two blocks of different prefixes are no prefix."""
        r = runner()
        r.execute(plan(row([1, 2, 3, 4], [1], id=1), row([5, 6, 7, 8, 9, 9, 9, 9], [2, 3], id=2)))
        with pytest.raises(Poisoned, match="different prefixes"):
            r.execute(plan(row([1], [1, 3, 4], start=8, id=3), step=1))

    def test_middle_of_a_prefix(self):
        """A block from the middle of a prompt is no beginning."""
        r = runner()
        r.execute(plan(row([1, 2, 3, 4, 5, 6, 7, 8], [1, 2])))
        with pytest.raises(Poisoned, match="different prefixes"):
            r.execute(plan(row([1], [2, 3], start=4, id=3), step=1))

    def test_somebody_elses_prefix(self):
        """A consistent prefix that is not the reader's own is found by the witness."""
        r = runner()
        r.witness = lambda id, choice: array("I", [9, 9, 9, 9, 1])
        r.execute(plan(row([1, 2, 3, 4], [1], samples=False)))
        with pytest.raises(Poisoned, match="not its own"):
            r.execute(plan(row([1], [1, 2], start=4, id=3), step=1))

    def test_same_step(self):
        """A block that another row writes in this very step cannot be read."""
        with pytest.raises(Poisoned, match="never written"):
            runner().execute(
                plan(row([1, 2, 3, 4], [1], id=1), row([5], [1, 2], start=4, id=2)),
            )

    def test_overwritten_in_this_step(self):
        """A block that is being rewritten in this step cannot be read."""
        r = runner()
        r.execute(plan(row([1, 2, 3, 4], [1], id=1)))
        with pytest.raises(Poisoned, match="this step writes"):
            r.execute(plan(row([1, 2, 3, 4], [1], id=1), row([5], [1, 2], start=4, id=2), step=1))

    def test_two_writers(self):
        """Two rows never write the same slot."""
        with pytest.raises(Poisoned, match="another row"):
            runner().execute(plan(row([1, 2], [1], id=1), row([3, 4], [1], id=2)))

    def test_short_table_and_null_block(self):
        """A table that does not cover the tokens, or names the null block, is refused."""
        for table in ([1], [1, 0]):
            with pytest.raises(Poisoned, match="does not cover"):
                runner().execute(plan(row([1, 2, 3, 4, 5], table)))
