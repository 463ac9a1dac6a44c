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
        return [
            Drawn((token,) * (1 + row.forks)) if _is_plain(row) else self._draw(logits[index].cpu(), row)
            for index, (row, token) in enumerate(zip(rows, _likeliest(logits), strict=True))
        ]

    def _draw(self, logits: torch.Tensor, row: Row) -> Drawn:
        how = row.sampling
        try:
            scores = self._allowed(adjusted(logits, row), row)
        except DeadEnd as end:
            return Drawn(error=str(end))
        if how.temperature < GREEDY_BELOW:
            tokens = tuple(_likeliest(scores[None])) * (1 + row.forks)
        else:
            ids, weights = _candidates(scores, how)
            cumulative = weights.cumsum(dim=-1)
            choices = (row.choice, *range(1, row.forks + 1))
            places = [_at(cumulative, uniform(how.seed, row.draw, choice)) for choice in choices]
            tokens = tuple(places if ids is None else ids[places].tolist())
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


def _likeliest(logits: torch.Tensor) -> list[int]:
    """Of each row the first of the largest. On a CPU by numpy, whose search is vectorised: 0.4 ms for 64 rows
    of 49,152, where torch takes 12."""
    if logits.device.type == "cpu":
        return list(map(int, logits.contiguous().numpy().argmax(axis=-1)))
    return list(map(int, logits.argmax(dim=-1).tolist()))


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


def _candidates(scores: torch.Tensor, how: Sampling) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Ids, ascending, that may be drawn (None: all), and what they are drawn in proportion to, in fp64.

    min_p and top_k both keep the first of one ranking, so their order is free: top_k goes first, since what
    follows then looks at k tokens instead of all.
    """
    ids = _top_k(scores, how.top_k) if 0 < how.top_k < len(scores) else None
    open_ = scores if ids is None else scores[ids]
    weights = torch.softmax(open_.double() / how.temperature, dim=-1)
    if how.min_p > 0:
        kept = (weights >= how.min_p * weights.max()).nonzero().squeeze(-1)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    if how.top_p < 1:
        kept = _top_p(weights, how.top_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def _top_k(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Where the ``k`` largest are, ascending; of equal ones those of lower ids."""
    least = scores.topk(k).values[-1]
    larger = (scores > least).nonzero().squeeze(-1)
    equal = (scores == least).nonzero().squeeze(-1)
    return torch.cat([larger, equal[: k - len(larger)]]).sort().values


def _top_p(weights: torch.Tensor, p: float) -> torch.Tensor:
    """Where the fewest are, ascending, that have the share ``p`` together, the largest first; one at least.

    All that weigh less than (1 - p) / V have less than 1 - p together, so that none of them is among
    these, and only the others need sorting.
    """
    total = weights.sum()
    least = torch.minimum((1 - p) * total / len(weights), weights.max())
    candidates = (weights >= least).nonzero().squeeze(-1)
    largest, order = weights[candidates].sort(descending=True, stable=True)
    count = int(torch.searchsorted(largest.cumsum(dim=-1), p * total)) + 1
    return candidates[order[:count]].sort().values


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
