"""Drawing tokens: exact where a rule is exact, by chi-square where it is a distribution."""

import math
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

torch = pytest.importorskip("torch")

from engine.model import sampler as sampling  # noqa: E402
from engine.model.penalties import adjusted  # noqa: E402
from engine.model.sampler import Drawn, Sampler, uniform  # noqa: E402
from engine.request import Bias, Sampling  # noqa: E402
from engine.runner.base import Row  # noqa: E402

pytestmark = pytest.mark.torch
EOS = frozenset({3})
PLAIN = Sampling()
PEAKED = [1.2, 0.9, 0.8, 0.1, -0.2, -1.0, -1.4, -3.0]
CHANCE = 1e-2
"""A right sampler's chi-square p-value is below it once in a hundred seeds; ours is fixed."""


def row(how: Sampling = PLAIN, **more) -> Row:
    known = more.pop("known", None)
    given = {"id": 1, "start": 0, "tokens": array("I", [0]), "table": (), "samples": True, "sampling": how}
    return Row(**{**given, "known": None if known is None else array("I", known), **more})


def draw(logits, *rows: Row) -> list[Drawn]:
    """``logits``: one list for all rows, or one for each."""
    tensor = torch.tensor(logits, dtype=torch.float32)
    return Sampler(EOS).draw(tensor.expand(len(rows), -1) if tensor.dim() == 1 else tensor, rows)


def tokens(logits, *rows: Row) -> list[int]:
    return [drawn.tokens[0] for drawn in draw(logits, *rows)]


def expected(logits, how: Sampling) -> np.ndarray:
    """The distribution by the definitions, token by token and without torch."""
    scaled = [math.exp((logit - max(logits)) / how.temperature) for logit in logits]
    p = {token: value / sum(scaled) for token, value in enumerate(scaled)}
    p = {token: value for token, value in p.items() if value >= how.min_p * max(p.values())}
    ranked = sorted(p, key=lambda token: (-p[token], token))
    ranked = ranked[: how.top_k] if how.top_k else ranked
    mass, kept = sum(p[token] for token in ranked), []
    while not kept or (sum(p[token] for token in kept) < how.top_p * mass and len(kept) < len(ranked)):
        kept.append(ranked[len(kept)])
    share = sum(p[token] for token in kept)
    return np.array([p[token] / share if token in kept else 0.0 for token in range(len(logits))])


def p_value(logits, how: Sampling, draws: int = 3000) -> float:
    """Chi-square of many draws against ``expected``; 0 if something impossible was drawn."""
    rows = [row(how, draw=index) for index in range(draws)]
    counts = np.bincount(tokens(logits, *rows), minlength=len(logits))
    p = expected(logits, how)
    if counts[p == 0].any():
        return 0.0
    return float(chisquare(counts[p > 0], draws * p[p > 0]).pvalue) if (p > 0).sum() > 1 else 1.0


SETTINGS = {
    "temperature": Sampling(temperature=1.0, seed=11),
    "cold": Sampling(temperature=0.6, seed=12),
    "hot": Sampling(temperature=1.7, seed=13),
    "top_k": Sampling(temperature=1.0, top_k=3, seed=14),
    "top_p": Sampling(temperature=1.0, top_p=0.8, seed=15),
    "min_p": Sampling(temperature=1.0, min_p=0.3, seed=16),
    "all": Sampling(temperature=1.3, min_p=0.05, top_k=6, top_p=0.9, seed=17),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_have_the_distribution_that_was_asked_for(name):
    """Over many indexes the frequencies are the probabilities, and what is cut off never comes."""
    assert p_value(PEAKED, SETTINGS[name]) > CHANCE


RIGHT_TOP_P, RIGHT_TOP_K, RIGHT_CANDIDATES = sampling._top_p, sampling._top_k, sampling._candidates


def one_less(weights, p):
    kept = RIGHT_TOP_P(weights, p)
    return kept[kept != kept[weights[kept].argmin()]]


def mutated(**how):
    """The sampler with other parameters than those that were asked for."""

    def candidates(scores, asked):
        changed = {name: change(getattr(asked, name)) for name, change in how.items()}
        return RIGHT_CANDIDATES(scores, replace(asked, **changed))

    return candidates


MUTANTS = {
    "top-p one token early": ("top_p", "_top_p", one_less),
    "top-p one token late": ("top_p", "_top_p", lambda weights, p: RIGHT_TOP_P(weights, p + 0.1)),
    "top-k one too many": ("top_k", "_top_k", lambda scores, k: RIGHT_TOP_K(scores, k + 1)),
    "temperature inverted": ("cold", "_candidates", mutated(temperature=lambda t: 1 / t)),
    "temperature ignored": ("hot", "_candidates", mutated(temperature=lambda t: 1.0)),
    "min-p ignored": ("min_p", "_candidates", mutated(min_p=lambda p: 0.0)),
    "draws not uniform": ("temperature", "uniform", lambda *key: uniform(*key) ** 1.2),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_test_of_distributions_finds_a_wrong_sampler(name, monkeypatch):
    """Each small mistake is far outside of what chance explains."""
    setting, function, mutant = MUTANTS[name]
    monkeypatch.setattr(sampling, function, mutant)
    assert p_value(PEAKED, SETTINGS[setting]) < 1e-5


def pairs(draws: int = 4000) -> float:
    """Chi-square of what two choices draw at the same index, against two independent draws."""
    logits, how = [0.5, 0.0, -0.5], Sampling(temperature=1.0, seed=21)
    drawn = draw(logits, *(row(how, draw=index, forks=1) for index in range(draws)))
    p = expected(logits, how)
    counts = np.bincount(
        [3 * first + second for first, second in (each.tokens for each in drawn)], minlength=9
    )
    return float(chisquare(counts, draws * np.outer(p, p).ravel()).pvalue)


def test_choices_are_independent_of_each_other(monkeypatch):
    """Together they have the product of their distributions; choices that share their luck are found out."""
    assert pairs() > CHANCE
    monkeypatch.setattr(sampling, "uniform", lambda seed, index, choice=0: uniform(seed, index))
    assert pairs() < 1e-5


def test_zero_temperature_takes_the_most_likely():
    """Greedy rows give the index of the largest logit, all forks the same."""
    drawn = draw([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]], row(), row(draw=7, forks=2))
    assert [each.tokens for each in drawn] == [(1,), (0, 0, 0)]
    assert tokens([0.0, 1.0, 0.5], row(Sampling(temperature=1e-7, seed=5))) == [1]


def test_a_draw_is_the_inverse_transform_of_its_key():
    """The first choice draws by (seed, index) alone, in order of the ids: what it always drew."""
    for index in range(200):
        u = uniform(9, index)
        below = np.cumsum(expected(PEAKED, Sampling(temperature=0.7)))
        how = Sampling(temperature=0.7, seed=9)
        assert tokens(PEAKED, row(how, draw=index)) == [int(np.searchsorted(below, u, side="right"))]


def test_no_key_shares_its_luck():
    """Neither seeds, nor indexes, nor choices draw the same number."""
    keys = [(seed, index, choice) for seed in range(15) for index in range(15) for choice in range(4)]
    assert len({uniform(*key) for key in keys}) == len(keys)
    assert uniform(3, 4, 0) == uniform(3, 4)


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    seed=st.integers(0, 50),
    top_k=st.sampled_from([0, 1, 5, 100]),
    top_p=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    logit_bias=st.lists(st.builds(Bias, st.integers(0, 24), st.floats(-5, 5)), max_size=3).map(tuple),
    min_tokens=st.sampled_from([0, 4]),
    stop_ids=st.lists(st.integers(0, 30), max_size=3).map(tuple),
    logprobs=st.sampled_from([None, 0, 3]),
)
ROWS = st.builds(
    row,
    SAMPLINGS,
    draw=st.integers(0, 6),
    choice=st.integers(0, 2),
    forks=st.sampled_from([0, 0, 2]),
    known=st.lists(st.integers(0, 23), min_size=2, max_size=12),
    prompt=st.integers(1, 2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=8), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_batch_changes_nothing(rows, seed, order):
    """Whoever computes beside it, in whatever order, a row draws the same tokens and tells the same
    logprobs (ENGINE E6)."""
    logits = torch.randn(len(rows), 24, generator=torch.Generator().manual_seed(seed)) * 3
    together = Sampler(EOS).draw(logits, rows)
    alone = [Sampler(EOS).draw(logits[i : i + 1], [one])[0] for i, one in enumerate(rows)]
    assert together == alone
    mixed = list(range(len(rows)))
    order.shuffle(mixed)
    assert Sampler(EOS).draw(logits[mixed], [rows[i] for i in mixed]) == [together[i] for i in mixed]


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 1000))
def test_forks_draw_what_their_choices_draw(one, seed):
    """The choices that a prefill draws for are those that rows of their own would have drawn."""
    logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(seed)) * 3
    one = replace(one, choice=0, forks=3)
    forked = Sampler(EOS).draw(logits, [one])[0]
    for choice in range(4):
        child = Sampler(EOS).draw(logits, [replace(one, choice=choice, forks=0)])[0]
        assert child.tokens == (forked.tokens[choice],)
        assert child.logprobs == forked.logprobs[choice : choice + 1]


WEIGHTS = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.2, 0.5, 1.0, 3.0]), min_size=1, max_size=20).filter(any)


@given(WEIGHTS, st.integers(1, 20))
def test_top_k_keeps_exactly_the_k_largest(weights, k):
    """Of equal ones those of lower ids, so that the cut is the same everywhere."""
    ranked = sorted(range(len(weights)), key=lambda token: (-weights[token], token))[:k]
    kept = sampling._top_k(torch.tensor(weights, dtype=torch.float64), min(k, len(weights)))
    assert kept.tolist() == sorted(ranked)


@given(WEIGHTS, st.floats(0, 0.999))
def test_top_p_keeps_the_fewest_that_reach_the_share(weights, p):
    """The largest ones; without the least of them the share is missed."""
    chosen = sampling._top_p(torch.tensor(weights, dtype=torch.float64), p).tolist()
    assert chosen == sorted(chosen)
    others = [weight for token, weight in enumerate(weights) if token not in chosen]
    assert min(weights[token] for token in chosen) >= max(others, default=0.0)
    wanted, slack = p * sum(weights), 1e-9
    mass = [weights[token] for token in chosen]
    assert sum(mass) >= wanted - slack
    assert len(mass) == 1 or sum(mass) - min(mass) < wanted + slack


def by_hand(logits, one: Row) -> list[float]:
    """Bias and penalties by their definitions, one token at a time."""
    how, scores = one.sampling, list(map(float, logits))
    for bias in how.logit_bias:
        if bias.token < len(scores):
            scores[bias.token] += bias.value
    known = list(one.known or ())
    for token in set(known):
        score, r = scores[token], how.repetition_penalty
        scores[token] = score / r if score > 0 else score * r
    for token in known[one.prompt :]:
        scores[token] -= how.frequency_penalty
    for token in set(known[one.prompt :]):
        scores[token] -= how.presence_penalty
    return scores


@settings(deadline=None)
@given(ROWS, st.integers(0, 1000))
def test_bias_and_penalties_are_as_defined(one, seed):
    """Repetition over prompt and output, presence and frequency over the output alone."""
    logits = torch.randn(24, generator=torch.Generator().manual_seed(seed)) * 3
    before = logits.clone()
    assert adjusted(logits, one).tolist() == pytest.approx(by_hand(logits.tolist(), one), abs=1e-4)
    assert torch.equal(logits, before), "another row may read them"


def test_a_bias_bans_and_forces():
    """-100 and 100 decide, on greedy rows too; an id that the model does not have changes nothing."""
    ban = Sampling(logit_bias=(Bias(1, -100.0),))
    force = Sampling(temperature=2.0, seed=3, logit_bias=(Bias(2, 100.0), Bias(900, 100.0)))
    assert tokens([0.0, 3.0, 1.0], row(ban), row(force)) == [2, 2]


def test_nothing_ends_before_min_tokens():
    """Neither end-of-sequence nor stop ids come while fewer tokens are out; then they may."""
    how = Sampling(min_tokens=2, stop_ids=(1, 700))
    logits = [0.0, 5.0, 1.0, 6.0]
    assert tokens(logits, *(row(how, draw=index) for index in range(4))) == [2, 2, 3, 3]


def test_impossible_tokens_are_never_drawn(monkeypatch):
    """A token of probability zero is not drawn, even by the smallest or the largest number."""
    logits = [-math.inf, 0.0, -math.inf, -math.inf]
    for u in (0.0, math.nextafter(1.0, 0.0)):
        monkeypatch.setattr(sampling, "uniform", lambda *_, u=u: u)
        assert tokens(logits, row(Sampling(temperature=2.0))) == [1]


def test_logprobs_are_those_of_the_model_after_bias_and_penalties():
    """At temperature 1 and without the cuts; own token and the likeliest, of which none is impossible."""
    how = Sampling(temperature=0.2, top_k=1, logprobs=3, logit_bias=(Bias(0, 1.0),), min_tokens=1)
    (drawn,) = draw([1.0, 2.5, 0.0, 9.0, -1.0], row(how))
    (told,) = drawn.logprobs
    scores = np.array([2.0, 2.5, 0.0, -1.0])  # without id 3, which may not end the output yet
    logs = scores - math.log(np.exp(scores).sum())
    assert (told.token, told.top_ids) == (1, (1, 0, 2))
    assert told.value == pytest.approx(logs[1], abs=1e-5)
    assert told.top_values == pytest.approx(logs[:3][[1, 0, 2]], abs=1e-5)
    (few,) = draw([1.0, 2.5, 0.0, 9.0], row(replace(how, logprobs=20)))
    assert few.logprobs[0].top_ids == (1, 0, 2)
    assert draw([1.0, 2.5], row(Sampling(logprobs=0)))[0].logprobs[0].top_ids == ()


def test_a_schema_without_matchers_fails_its_row_alone():
    """It says so; the row beside it draws on."""
    bad, good = draw([0.0, 1.0], row(Sampling(schema="{}"), known=[1], prompt=1), row())
    assert (bad.tokens, good.tokens) == ((), (1,))
    assert "schema" in str(bad.error)
