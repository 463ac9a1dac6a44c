"""Drawing tokens."""

import math

import pytest

torch = pytest.importorskip("torch")

from engine.model.sampler import draw, uniform  # noqa: E402
from engine.request import Sampling  # noqa: E402

pytestmark = pytest.mark.torch


def test_zero_temperature_takes_the_most_likely():
    """Greedy rows give the index of the largest logit."""
    assert draw(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]), [Sampling(), Sampling()], [0, 7]) == [1, 0]


def test_a_draw_depends_on_its_own_row_seed_and_index_alone():
    """Batching changes nothing (ENGINE E6)."""
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    sampling = [Sampling(temperature=1.0, seed=seed) for seed in range(6)]
    together = draw(logits, sampling, [3] * 6)
    alone = [draw(logits[i : i + 1], [sampling[i]], [3])[0] for i in range(6)]
    assert together == alone
    assert together == draw(logits.flip(0), sampling[::-1], [3] * 6)[::-1]


def test_other_seeds_and_indexes_draw_anew():
    """Neither seeds nor positions share their luck."""
    assert len({uniform(seed, index) for seed in range(30) for index in range(30)}) == 900


def test_draws_follow_the_softmax():
    """Over many indexes the frequencies are the probabilities, within four standard errors."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    temperature, n = 0.7, 4000
    p = torch.softmax(logits / temperature, 0).tolist()
    drawn = draw(logits.expand(n, 4), [Sampling(temperature=temperature, seed=1)] * n, list(range(n)))
    for token, expected in enumerate(p):
        assert abs(drawn.count(token) / n - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_impossible_tokens_are_never_drawn():
    """A token of probability zero is not drawn, even by the smallest number."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]]).expand(200, 3)
    assert set(draw(logits, [Sampling(temperature=2.0)] * 200, list(range(200)))) == {1}
