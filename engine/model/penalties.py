"""What changes a row's scores before anything is drawn: bias, penalties, tokens that may not come yet."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from engine.request import Sampling
from engine.runner.base import Row


def penalises(how: Sampling) -> bool:
    """Whether the scores depend on the tokens so far."""
    neutral = how.repetition_penalty == 1 and how.presence_penalty == 0 and how.frequency_penalty == 0
    return not neutral


def too_early(row: Row) -> bool:
    """Whether the output may not end with the token that this row draws."""
    return row.draw < row.sampling.min_tokens


def adjusted(logits: torch.Tensor, row: Row) -> torch.Tensor:
    """A row's ``logits`` ``[vocabulary]`` after bias and penalties, in this order::

        s(t) = logit(t) + bias(t)
        s(t) = s(t) / r if s(t) > 0 else s(t) * r    for each t in prompt or output (Keskar et al. 2019)
        s(t) = s(t) - f * count(t) - p * [count(t) > 0]    count over the output alone, as OpenAI defines it

    with r, p, f the repetition, presence and frequency penalty. ``logits`` itself is not changed.
    """
    how, scores = row.sampling, logits.clone()
    for bias in how.logit_bias:
        if bias.token < len(scores):
            scores[bias.token] += bias.value
    if not penalises(how):
        return scores
    assert row.known is not None, "a row with penalties brings its tokens"
    known = torch.from_numpy(np.frombuffer(row.known, np.uint32).astype(np.int64))
    if how.repetition_penalty != 1:
        seen = scores[known]
        scores[known] = torch.where(seen > 0, seen / how.repetition_penalty, seen * how.repetition_penalty)
    counts = torch.bincount(known[row.prompt :], minlength=len(scores))
    return scores - how.frequency_penalty * counts - how.presence_penalty * (counts > 0)


def without(scores: torch.Tensor, tokens: Collection[int]) -> torch.Tensor:
    """``scores`` in which ``tokens`` cannot be drawn."""
    inside = [token for token in tokens if token < len(scores)]
    masked = scores.clone()
    masked[inside] = -torch.inf
    return masked
