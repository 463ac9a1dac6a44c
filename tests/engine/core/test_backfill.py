"""Who may pass the request at the head while it lacks capacity (ENGINE E25)."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine import messages as m
from engine.request import Finish, Sampling
from engine.sched.admission import ADMISSIONS
from engine.sched.backfill import LOOK_AHEAD, Reservation, Stay, reserve
from engine.sched.capacity import Capacity
from engine.sched.rates import ENOUGH_OUTPUTS

SECOND = 1_000_000_000
POLICIES = tuple(ADMISSIONS)


_PROMPT = st.builds(
    lambda family, common, own: [*range(100 * family, 100 * family + common), *range(1000, 1000 + own)],
    st.integers(0, 1),
    st.integers(0, 12),
    st.integers(1, 12),
)
"""Some tokens of one of two families, and some of its own."""


class TestReservation:
    """The arithmetic of t* and of what is spare then."""

    def test_the_first_end_that_suffices(self):
        """Ends after 3, 5 and 9 steps free 2, 4 and 8 blocks: a need of 5 is met after 5, with 2 to spare."""
        stays = [Stay(9, 8), Stay(3, 2), Stay(5, 4)]
        assert reserve(stays, free=1, need=5) == Reservation(5, 2)
        assert reserve(stays, free=1, need=15) == Reservation(9, 0)

    def test_growth_of_those_who_stay(self):
        """Without lifetime the others take a block every four steps meanwhile: the second end comes too
        late to be enough."""
        stays = [Stay(4, 3), Stay(8, 3), Stay(40, 1)]
        assert reserve(stays, free=0, need=3) == Reservation(4, 0)
        assert reserve(stays, free=0, need=3, growth=1 / 4) == Reservation(8, 1)

    def test_shared_blocks_are_not_spare(self):
        """Blocks that several count as theirs come free once."""
        assert reserve([Stay(4, 9)], free=0, need=3, shared=4) == Reservation(4, 2)

    def test_the_last_end_gives_the_headroom_too(self):
        """Nothing runs then, so nothing is kept free."""
        assert reserve([Stay(2, 3), Stay(4, 3)], free=0, need=7) == Reservation(math.inf, 0)
        assert reserve([Stay(2, 3), Stay(4, 3)], free=0, need=7, headroom=1) == Reservation(4, 0)

    def test_gone_by_then_or_spare(self):
        """A short stay passes whatever it takes; of long ones only as many as the spare blocks hold."""
        reservation = Reservation(until=5, spare=3)
        assert reservation.allows(Stay(5, 100))
        reservation.entered(Stay(5, 100))
        assert reservation.allows(Stay(50, 2))
        reservation.entered(Stay(50, 2))
        assert not reservation.allows(Stay(50, 2))
        assert reservation.allows(Stay(50, 1))


def crowded(bench, **more):
    """20 blocks: one request holds 8 of them for 16 steps more, the head needs 16, and 12 are free."""
    b = bench(blocks=20, budget=64, **more)
    b.send(m.Configure({"kv_headroom": 0.0}))
    runner = b.submit(16, 16)
    b.step()
    head = b.submit(48, 16)
    b.step()
    assert b.worker.scheduler.waiting.keys() == {(head, 0)}
    return b, runner, head


class TestLifetime:
    def test_a_short_one_passes(self, bench):
        """It is gone before the head can start, and the head starts when it would have started anyway."""
        b, runner, head = crowded(bench)
        short = b.submit(16, 8)
        b.run()
        assert b.steps_of[short][0] < b.steps_of[head][0]
        assert b.steps_of[head][0] == b.steps_of[runner][-1] + 1
        b.drained()

    def test_a_long_one_waits(self, bench):
        """It fits now, but its blocks would be missing when the head could start."""
        b, runner, head = crowded(bench)
        long = b.submit(8, 40)
        b.run()
        assert b.steps_of[head][0] == b.steps_of[runner][-1] + 1
        assert b.steps_of[long][0] > b.steps_of[runner][-1]
        b.drained()

    def test_a_long_one_passes_on_spare_blocks(self, bench):
        """When the head starts, 4 of the 20 blocks are left over: who needs no more may stay for long."""
        b, runner, head = crowded(bench)
        long, another = b.submit(1, 15), b.submit(1, 15)
        b.step()
        assert {long} == {id for id in (long, another) if id in b.steps_of}
        b.run()
        assert b.steps_of[head][0] == b.steps_of[runner][-1] + 1
        b.drained()

    def test_off(self, bench):
        """Without backfill nobody passes the head."""
        b, runner, head = crowded(bench)
        b.send(m.Configure({"backfill": False}))
        short = b.submit(16, 8)
        b.run()
        assert b.steps_of[short][0] >= b.steps_of[head][0] == b.steps_of[runner][-1] + 1
        b.drained()

    def test_after_long_waiting_only_the_more_urgent_pass(self, bench):
        """Twice the ageing time after it first lacked capacity, its own rank and those below stand still."""
        b, _, head = crowded(bench)
        b.send(m.Configure({"aging": 0.05}))
        b.now += SECOND // 10
        same, urgent = b.submit(8, 4, rank=1), b.submit(8, 4, rank=0)
        waiting = b.worker.scheduler.waiting
        assert waiting[head, 0].request.rank == 0
        lower = b.submit(8, 4, rank=2)
        b.step()
        assert not {same, urgent, lower} & b.steps_of.keys()
        b.run()
        b.drained()

    def test_the_more_urgent_still_pass(self, bench):
        """The head is of rank 1 and has waited long: a short one of rank 0 passes, one of rank 1 does not."""
        b = bench(blocks=20, budget=64)
        b.submit(16, 16, rank=1)
        b.step()
        head = b.submit(48, 16, rank=1)
        b.step()
        b.now += 20 * SECOND
        same, urgent = b.submit(8, 4, rank=1), b.submit(8, 4, rank=0)
        b.step()
        assert urgent in b.steps_of
        assert not {head, same} & b.steps_of.keys()
        b.run()
        b.drained()

    def test_looks_at_a_few_only(self, bench, monkeypatch):
        """However many wait, a step looks at the head and at eight behind it."""
        b, _, _ = crowded(bench)
        for _ in range(30):
            b.submit(8, 40)
        asked, stays = [], Capacity.stays

        def counting(self, sequences, step):
            asked.extend(sequence.order for sequence in sequences)
            return stays(self, sequences, step)

        monkeypatch.setattr(Capacity, "stays", counting)
        b.step()
        assert asked.count(0) == 1 + LOOK_AHEAD
        b.run(20_000)
        b.drained()

    def test_a_head_that_needs_the_whole_pool(self, bench):
        """The headroom is no obstacle for who runs alone, so its t* is the last end, and long ones wait."""
        b = bench(blocks=20, budget=64)
        runner = b.submit(16, 16)
        b.step()
        head = b.submit(64, 16)
        b.step()
        long = b.submit(8, 30)
        b.run()
        assert b.steps_of[head][0] == b.steps_of[runner][-1] + 1
        assert b.steps_of[long][0] > b.steps_of[head][0]
        b.drained()

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.tuples(_PROMPT, st.integers(1, 20), st.integers(1, 2)), min_size=1, max_size=4),
        _PROMPT,
        st.lists(st.tuples(_PROMPT, st.integers(1, 20), st.integers(1, 2)), min_size=1, max_size=8),
    )
    @example(  # the one whose block the head would share is gone when it starts
        before=[([1000], 1, 1), ([0, 1, 2, 3, *range(1000, 1009)], 4, 1)],
        large=[0, 1, 2, 3, 1000],
        behind=[([1000], 4, 2)],
    )
    def test_never_delays_the_head(self, bench, before, large, behind):
        """With exact lengths the head starts in the step in which it would start without backfill, or
        earlier, where blocks that some have in common make room."""
        starts = []
        for backfill in (True, False):
            b = bench(blocks=16, budget=1000)
            b.send(m.Configure({"backfill": False}))
            for tokens, out_max, n in before:
                b.submit(tokens, out_max, n=n)
            b.step()
            for tokens, out_max, n in [([*large, *range(900, 920)], 20, 1), *behind]:
                b.submit(tokens, out_max, n=n)
            head, _ = next(iter(b.worker.scheduler.waiting))
            b.send(m.Configure({"backfill": backfill}))
            b.run()
            starts.append(b.steps_of[head][0])
            b.drained()
        assert starts[0] <= starts[1]


@pytest.mark.parametrize("policy", ["prompt", "estimate", "peak"])
def test_other_policies_go_by_what_is_expected(bench, policy):
    """A short one passes the head under each policy, and everybody ends."""
    b = bench(blocks=20, budget=64, policy=policy)
    runner = b.submit(40, 16)
    b.step()
    head = b.submit(48, 4)
    b.step()
    short = b.submit(8, 4)
    b.run()
    assert b.steps_of[short][0] < b.steps_of[head][0]
    assert b.steps_of[head][0] <= b.steps_of[runner][-1] + 1
    b.drained()


@pytest.mark.parametrize("backfill", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_stream_of_short_ones_keeps_nobody_waiting_for_ever(bench, policy, backfill):
    """However wrong the expectations are: short ones come all the time, all stay much longer than expected,
    and a large one still starts soon after twice the ageing time."""
    b = bench(blocks=20, budget=64, policy=policy)
    b.send(m.Configure({"backfill": backfill, "aging": 0.5}))
    for _ in range(ENOUGH_OUTPUTS):
        b.cancel(b.submit(4, 30, sampling=Sampling()), Finish.STOP)
    b.submit(8, 30, sampling=Sampling())
    b.step()
    head, began = b.submit(60, 8), b.now
    while head not in b.steps_of:
        if len(b.worker.scheduler.waiting) < 3:
            b.submit(4, 30, sampling=Sampling())
        b.step()
        assert b.now - began < 4 * SECOND, "it starves"
    b.run()
    b.drained()
