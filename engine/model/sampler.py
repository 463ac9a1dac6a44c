"""Drawing the next token.

What is drawn depends on the row's own logits, its parameters, its tokens and (seed, choice, index), so
that batching, preemption and another worker change nothing (ENGINE E6)::

    logits -> bias, penalties -> min_tokens, schema -> greedy: the largest
                                      |
                                      |-> logprobs     |-> temperature -> min_p -> top_k -> top_p -> draw

A row that asks for none of this costs its share of one argmax over the batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.model.grammar import DeadEnd, Matchers
from engine.model.penalties import adjusted, penalises, too_early, without
from engine.request import Logprob, Sampling
from engine.runner.base import Row

GREEDY_BELOW = 1e-5
"""A temperature below it is 0: dividing by it would leave nothing but the largest anyway."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one row drew: its own token, then one for each of its forks; as many ``logprobs``, or none if
    they were not asked for. ``error`` says why nothing can be drawn; there are no tokens then."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    error: str | None = None


class Sampler:
    """Draws for the rows of a step. ``matchers`` is needed for rows with a schema only."""

    def __init__(self, eos_ids: frozenset[int], matchers: Matchers | None = None) -> None:
        self._eos_ids = eos_ids
        self._matchers = matchers

    def draw(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[Drawn]:
        """``logits`` ``[rows, vocabulary]`` in fp32, all finite, are those behind each row's last token."""
        likeliest: list[int] = logits.argmax(dim=-1).tolist()
        return [
            Drawn((token,) * (1 + row.forks)) if _is_plain(row) else self._draw(logits[index], row)
            for index, (row, token) in enumerate(zip(rows, likeliest, strict=True))
        ]

    def _draw(self, logits: torch.Tensor, row: Row) -> Drawn:
        how = row.sampling
        try:
            scores = self._allowed(adjusted(logits, row), row)
        except DeadEnd as end:
            return Drawn(error=str(end))
        if how.temperature < GREEDY_BELOW:
            tokens = (int(scores.argmax()),) * (1 + row.forks)
        else:
            cumulative = _weights(scores, how).cumsum(dim=-1)
            choices = (row.choice, *range(1, row.forks + 1))
            tokens = tuple(_at(cumulative, uniform(how.seed, row.draw, choice)) for choice in choices)
        top = how.logprobs
        return Drawn(tokens, () if top is None else _logprobs(scores, tokens, top))

    def _allowed(self, scores: torch.Tensor, row: Row) -> torch.Tensor:
        """``scores`` with minus infinity for what may not come now. A schema that leaves nothing but the
        end has its way before ``min_tokens``. Raises DeadEnd."""
        how, open_ = row.sampling, scores
        if how.schema is not None:
            if self._matchers is None or row.known is None:
                raise DeadEnd("this model cannot follow a schema")
            mask = self._matchers.allowed(row.id, row.choice, how.schema, row.known[row.prompt :])
            fits = torch.zeros(len(scores), dtype=torch.bool)
            fits[: len(mask)] = torch.from_numpy(mask[: len(scores)])
            open_ = scores.masked_fill(~fits, -torch.inf)
        if too_early(row):
            later = without(open_, self._eos_ids.union(how.stop_ids))
            open_ = later if later.max() > -torch.inf else open_
        return open_


def uniform(seed: int, index: int, choice: int = 0) -> float:
    """A number in [0, 1), the same on every machine."""
    key = f"{seed}:{index}:{choice}" if choice else f"{seed}:{index}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def _is_plain(row: Row) -> bool:
    """Whether the row takes the likeliest token as the model has it, and tells no more."""
    how = row.sampling
    return (
        how.temperature < GREEDY_BELOW
        and how.logprobs is None
        and how.schema is None
        and not how.logit_bias
        and not penalises(how)
        and not too_early(row)
    )


def _weights(scores: torch.Tensor, how: Sampling) -> torch.Tensor:
    """What each token is drawn in proportion to, ``[vocabulary]`` in fp64; 0 for those that are cut off."""
    weights = torch.softmax(scores.double() / how.temperature, dim=-1)
    if how.min_p > 0:
        weights = weights.where(weights >= how.min_p * weights.max(), 0.0)
    if 0 < how.top_k < len(weights):
        weights = _top_k(weights, how.top_k)
    if how.top_p < 1:
        weights = _top_p(weights, how.top_p)
    return weights


def _top_k(weights: torch.Tensor, k: int) -> torch.Tensor:
    """The ``k`` largest; of equal ones those of lower ids."""
    least = weights.topk(k).values[-1]
    larger = weights > least
    equal = (weights == least).nonzero().squeeze(-1)
    larger[equal[: k - int(larger.sum())]] = True
    return weights.where(larger, 0.0)


def _top_p(weights: torch.Tensor, p: float) -> torch.Tensor:
    """The fewest, largest first, that together have at least the share ``p``; one at least.

    All that weigh less than (1 - p) / V have less than 1 - p together, so that none of them is among
    these, and only the others need sorting.
    """
    total = weights.sum()
    least = torch.minimum((1 - p) * total / len(weights), weights.max())
    candidates = (weights >= least).nonzero().squeeze(-1)
    largest, order = weights[candidates].sort(descending=True, stable=True)
    count = int(torch.searchsorted(largest.cumsum(dim=-1), p * total)) + 1
    kept = torch.zeros_like(weights)
    kept[candidates[order[:count]]] = largest[:count]
    return kept


def _at(cumulative: torch.Tensor, u: float) -> int:
    """Inverse transform: the first token whose cumulative weight exceeds the share ``u``."""
    total = float(cumulative[-1])
    wanted = min(u * total, math.nextafter(total, 0.0))  # rounded up to the total, nothing would exceed it
    return int(torch.searchsorted(cumulative, wanted, right=True))


def _logprobs(scores: torch.Tensor, tokens: Sequence[int], top: int) -> tuple[Logprob, ...]:
    """Of each token and of the ``top`` likeliest, without those that cannot be drawn (Logprob)."""
    logs = scores.double().log_softmax(dim=-1)
    values, ids = logs.topk(min(top, len(logs)))
    possible = int((values > -torch.inf).sum())
    likeliest = tuple(ids[:possible].tolist()), tuple(values[:possible].tolist())
    return tuple(Logprob(token, float(logs[token]), *likeliest) for token in tokens)
