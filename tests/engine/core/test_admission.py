"""The policies of admission as formulas (ENGINE E22, E23), each against a count of blocks made by hand or by
walking through time."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.config import AdmissionConfig, ClassConfig
from engine.kv.blocks import blocks_for
from engine.request import Sampling
from engine.sched.admission import (
    ADMISSIONS,
    Books,
    Claim,
    GateRefused,
    admits,
    estimate,
    gate,
    lifetime,
    peak,
    prompt,
    unit_blocks,
)
from engine.sched.outlook import FIRST_RATIO, LAST_RATIO, RATIO_STEPS, Outlook, steps_left
from engine.sched.rates import ENOUGH_OUTPUTS, OutputLengths

B = 4


def books(free, running=(), *, usable=None, ratio=1.0, referenced=None):
    held = sum(each.held for each in running)
    referenced = held if referenced is None else referenced
    return Books(
        block_size=B,
        usable=free + referenced if usable is None else usable,
        free=free,
        promised=sum(each.blocks(each.rem, B) - each.held for each in running),
        referenced=referenced,
        ratio=ratio,
        alone=not running,
        running=lambda: list(running),
    )


def runs(tokens, rem, likely=None, choices=1):
    return Claim(tokens, rem, rem if likely is None else likely, choices, blocks_for(tokens, B))


def asks(tokens, rem, likely=None, choices=1, ref_hit=0):
    return Claim(tokens, rem, rem if likely is None else likely, choices, ref_hit=ref_hit)


class Shape(NamedTuple):
    """A request: whose prefix it has, how many blocks of it, how many tokens of its own, and most output."""

    family: int
    common: int
    own: int
    rem: int

    @property
    def tokens(self):
        return self.common * B + self.own


_SHAPE = st.builds(Shape, st.integers(0, 1), st.integers(0, 4), st.integers(1, 9), st.integers(1, 12))


def _held(shape, who, choice=0):
    """What it holds after so many steps, as names of blocks; nothing once it has ended."""

    def at(step):
        if step > shape.rem:
            return set()
        count, full = blocks_for(shape.tokens + step, B), shape.tokens // B
        return {
            ("prefix", shape.family, index)
            if index < shape.common
            else (who, index)
            if index < full
            else (who, choice, index)
            for index in range(count)
        }

    return at


def _distinct(holders, step):
    return len(set().union(*(at(step) for at in holders)))


class TestGate:
    """C1 (d): choices of one request take their room together."""

    def gate(self, prompt, max_tokens, n, over_length="reject", blocks=4):
        config = AdmissionConfig(over_length=over_length)
        return gate(prompt, max_tokens, ClassConfig(), config, 64, blocks, B, n)

    def test_choices_that_never_fit_are_refused_at_once(self):
        """Four choices of 12 tokens with 8 in common need 2 + 4 blocks of 4: refused with both numbers."""
        with pytest.raises(GateRefused, match=r"12 tokens in each of 4 choices need 6 blocks of 4, 4 are"):
            self.gate(8, 4, n=4)
        with pytest.raises(GateRefused) as refused:
            self.gate(8, 4, n=4, over_length="clamp")
        assert refused.value.code == "too_many_choices"

    def test_choices_share_what_is_left(self):
        """With 6 blocks the same four choices are served; two of a longer answer are refused, or cut."""
        assert self.gate(8, 4, n=4, blocks=6) == 4
        with pytest.raises(GateRefused, match="max_tokens 9 is more than the 8"):
            self.gate(8, 9, n=2, blocks=6)
        assert self.gate(8, 9, n=2, blocks=6, over_length="clamp") == 8
        assert self.gate(8, None, n=2, blocks=6) == 8

    @given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 6), st.integers(1, 20))
    def test_what_passes_fits_alone_under_every_policy(self, length, output, n, blocks):
        """The gate lets in exactly what an empty pool holds, and no policy keeps that out of one."""
        try:
            out_max = gate(length, output, ClassConfig(), AdmissionConfig(), None, blocks, B, n)
        except GateRefused:
            assert length >= blocks * B or unit_blocks(length, length + output, B, n) > blocks
            return
        assert unit_blocks(length, length + out_max, B, n) <= blocks
        assert all(admits(policy, asks(length, out_max, choices=n), books(blocks)) for policy in ADMISSIONS)


class TestPrompt:
    def test_looks_at_the_whole_prompt(self):
        """Ten blocks of prompt need ten free ones, whatever the answer, less what others hold already."""
        claim = asks(40, 400)
        assert prompt(claim, books(10))
        assert not prompt(claim, books(9))
        assert prompt(claim._replace(ref_hit=4), books(6))

    def test_choices_bring_their_partial_blocks(self):
        """Three choices of a prompt of 10 share two blocks and need one more each."""
        assert prompt(asks(10, 1, choices=3), books(5))
        assert not prompt(asks(10, 1, choices=3), books(4))


class TestEstimate:
    def test_a_share_of_the_growth_and_all_of_ones_own(self):
        """0.5 * 40 for the running, 20 + 8 for its own tokens and a block to spare: 52 tokens."""
        running = [runs(8, 10), runs(8, 30)]
        assert estimate(asks(20, 8), books(13, running, ratio=0.5))
        assert not estimate(asks(20, 8), books(12, running, ratio=0.5))
        assert estimate(asks(20, 8, ref_hit=1), books(12, running, ratio=0.5))

    def test_looks_no_farther_than_4096(self):
        """An answer of a million tokens counts as one of 4096, one's own and another's."""
        assert estimate(asks(4, 10**6), books((4 + 4096 + B) // B))
        assert estimate(asks(4, 1), books((4096 + 4 + 1 + B) // B + 1, [runs(4, 10**6)]))

    def test_the_ratio_sinks_and_is_set_by_a_preemption(self):
        """From 0.7 to 0.098 in 600 steps; a preemption sets it to what was generated, with 20 to spare."""
        outlook = Outlook(OutputLengths())
        assert outlook.ratio == FIRST_RATIO
        for _ in range(RATIO_STEPS // 2):
            outlook.stepped()
        assert outlook.ratio == pytest.approx((FIRST_RATIO + LAST_RATIO) / 2)
        for _ in range(RATIO_STEPS):
            outlook.stepped()
        assert outlook.ratio == pytest.approx(LAST_RATIO)
        outlook.preempted([_Answering(10, 100), _Answering(20, 100)])
        assert outlook.ratio == pytest.approx((10 + 20 + 2 * 20) / 200)
        outlook.preempted([_Answering(95, 100)])
        assert outlook.ratio == 1.0


class TestPeak:
    def test_the_longest_alone_or_all_together(self):
        """Two at once: 2 * 4 + 8 + 8 tokens and a partial block each; the longer one alone 24 + 8."""
        running = [runs(8, 24)]
        claim = asks(8, 4)
        together, alone = 2 * 4 + 16 + 2 * (B - 1), 24 + 8 + (B - 1)
        assert peak(claim, books(0, running, usable=blocks_for(max(together, alone), B)))
        assert not peak(claim, books(0, running, usable=blocks_for(max(together, alone), B) - 1))

    def test_goes_by_what_is_likely(self):
        """An answer that may be long and seldom is counts as long as it usually is."""
        running = [runs(8, 400, likely=4)]
        assert peak(asks(8, 400, likely=4), books(0, running, usable=8))
        assert not peak(asks(8, 400), books(0, running, usable=8))

    def test_shared_blocks_count_once(self):
        """Ten that share a prefix of 20 blocks fit where ten of their own would not."""
        running = [runs(80, 4) for _ in range(9)]
        claim = asks(80, 4, ref_hit=20)
        once = books(0, running, usable=20 + 10 * 2, referenced=20)
        assert peak(claim, once)
        assert not peak(claim._replace(ref_hit=0), once)

    @given(st.lists(_SHAPE, max_size=6), _SHAPE, st.integers(1, 3))
    @example([], Shape(0, 0, 3, 2), 3)
    def test_never_below_what_is_really_held(self, others, own, choices):
        """Who would overfill the pool at any step is kept out: all generate a token a step to their ends,
        some have prefixes in common, and whoever asks may have several choices."""
        running = [_held(shape, index) for index, shape in enumerate(others)]
        asking = [_held(own, len(others), choice) for choice in range(choices)]
        worst = max(_distinct([*running, *asking], step) for step in range(13))
        claims = [runs(shape.tokens, shape.rem) for shape in others]
        known = max((shape.common for shape in others if shape.family == own.family), default=0)
        claim = asks(own.tokens, own.rem, choices=choices, ref_hit=min(known, own.common))
        referenced = _distinct(running, 0)
        assert not peak(claim, books(0, claims, usable=worst - 1, referenced=referenced))
        spare = len(others) + choices  # a partial block each is all that it may be too careful by
        if not any(shape.common for shape in others):
            assert peak(claim, books(0, claims, usable=worst + spare, referenced=referenced))


class TestLifetime:
    def test_everything_that_anyone_may_need(self):
        """Promised blocks of the running and one's own whole life."""
        running = [runs(8, 8), runs(4, 12)]
        promised = (4 - 2) + (4 - 1)
        claim = asks(8, 8)
        assert lifetime(claim, books(promised + 4, running))
        assert not lifetime(claim, books(promised + 3, running))
        assert lifetime(claim._replace(ref_hit=1), books(promised + 3, running))

    def test_choices_are_one_unit(self):
        """2 + 4 * 1 blocks for four choices of 8 + 4."""
        assert lifetime(asks(8, 4, choices=4), books(6))
        assert not lifetime(asks(8, 4, choices=4), books(5))


class TestExpectations:
    def test_a_class_is_known_after_twenty_answers(self, bench):
        """An answer is expected to be as long as it may be, later as long as its class's are, at least a
        tenth longer than it is already, and never longer than it may be."""
        lengths = OutputLengths()
        outlook = Outlook(lengths)
        sequence = _sequence(bench, out_max=100)
        assert outlook.claim(sequence).likely == 100
        for _ in range(ENOUGH_OUTPUTS):
            lengths.ended("default", 30)
        assert outlook.claim(sequence).likely == 30
        sequence.tokens.extend([1] * 60)
        assert outlook.claim(sequence).likely == 6
        sequence.tokens.extend([1] * 39)
        assert outlook.claim(sequence).likely == 1
        assert outlook.claim(sequence, sure=True).likely == 1

    def test_sure_when_busy_or_when_the_end_is_ignored(self, bench):
        """With ignore_eos the whole answer is certain, and a busy pool is careful."""
        lengths = OutputLengths()
        for _ in range(ENOUGH_OUTPUTS):
            lengths.ended("default", 30)
        outlook = Outlook(lengths)
        assert outlook.claim(_sequence(bench, out_max=100), sure=True).likely == 100
        assert outlook.claim(_sequence(bench, out_max=100, ignore_eos=True)).likely == 100

    @pytest.mark.parametrize(
        ("uncomputed", "output", "steps"), [(1, 5, 5), (16, 1, 1), (17, 1, 2), (40, 5, 3 + 4)]
    )
    def test_steps_left(self, uncomputed, output, steps):
        """A decoder takes a step a token; the last chunk of a prompt draws the first one."""
        assert steps_left(uncomputed, output, 16) == steps


class _Answering:
    def __init__(self, out, out_max):
        self.generated = out
        self.request = type("Asked", (), {"out_max": out_max})


def _sequence(bench, out_max, ignore_eos=False):
    b = bench(blocks=64)
    id = b.submit(8, out_max, sampling=Sampling(ignore_eos=ignore_eos))
    return b.worker.scheduler.waiting[id, 0]
