"""Who is let in: the gate at submit (ENGINE E22) and admission into the pool (ENGINE E23).

Both are pure arithmetic. need(t) = ceil(t/B); N = usable blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from engine.config import AdmissionConfig, ClassConfig
from engine.kv.blocks import blocks_for
from engine.request import Request


class GateRefused(Exception):
    """The request cannot be served as asked: HTTP 400 with a code that a program can read."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def gate(
    prompt_tokens: int,
    max_tokens: int | None,
    class_config: ClassConfig,
    admission_config: AdmissionConfig,
    max_model_len: int | None,
    usable_blocks: int,
    block_size: int,
) -> int:
    """``out_max``, the most tokens that the request may generate (ENGINE E22); raises GateRefused.

    out_max = min(max_tokens or the class's default, class maximum, context - P), where the context is
    ``min(max_model_len, N*B)``. A *given* ``max_tokens`` above the others is refused, or cut when
    ``over_length`` is ``clamp``. Hence every accepted request fits into the pool alone.
    """
    capacity = usable_blocks * block_size
    context = capacity if max_model_len is None else min(max_model_len, capacity)
    _check_prompt(prompt_tokens, max_tokens, class_config, context, usable_blocks, block_size)
    room = context - prompt_tokens
    if class_config.max_total is not None:
        room = min(room, class_config.max_total - prompt_tokens)
    limit = room if class_config.max_output is None else min(room, class_config.max_output)
    asked = class_config.default_output if max_tokens is None else max_tokens
    if max_tokens is not None and asked > limit and admission_config.over_length == "reject":
        raise GateRefused(
            "max_tokens_too_large",
            f"max_tokens {asked} is more than the {limit} this request may generate: prompt {prompt_tokens}, "
            f"context {context}, class output limit {class_config.max_output}, class total limit "
            f"{class_config.max_total}; {_needs(prompt_tokens + asked, usable_blocks, block_size)}",
        )
    return min(asked, limit)


def _check_prompt(
    prompt: int, max_tokens: int | None, limits: ClassConfig, context: int, usable: int, block_size: int
) -> None:
    if prompt < 1:
        raise GateRefused("empty_prompt", "the prompt has no tokens; send at least one")
    if max_tokens is not None and max_tokens < 1:
        raise GateRefused("invalid_max_tokens", f"max_tokens is {max_tokens}; it must be at least 1")
    if prompt >= context:
        total = prompt + (max_tokens or 1)
        raise GateRefused(
            "context_length_exceeded",
            f"the prompt has {prompt} tokens and the context {context}, which leaves no room for output; "
            + _needs(total, usable, block_size),
        )
    if limits.max_input is not None and prompt > limits.max_input:
        raise GateRefused(
            "class_input_limit",
            f"the prompt has {prompt} tokens, this class takes at most {limits.max_input}",
        )
    if limits.max_total is not None and prompt >= limits.max_total:
        raise GateRefused(
            "class_total_limit",
            f"the prompt has {prompt} tokens and this class takes {limits.max_total} with the output",
        )


def _needs(tokens: int, usable: int, block_size: int) -> str:
    return (
        f"{tokens} tokens need {blocks_for(tokens, block_size)} blocks of {block_size}, {usable} are usable"
    )


def unservable(
    request: Request, max_model_len: int, usable_blocks: int, block_size: int, vocabulary: int
) -> str | None:
    """Why a worker could not serve this request even alone; None is what the gate guarantees."""
    total = len(request.tokens) + request.out_max
    if not request.tokens or request.out_max < 1:
        return f"a prompt of {len(request.tokens)} tokens and {request.out_max} to generate is no request"
    if total > max_model_len:
        return f"{_needs(total, usable_blocks, block_size)}, the context is {max_model_len}"
    if max(request.tokens) >= vocabulary:
        return f"token id {max(request.tokens)} is outside the vocabulary of {vocabulary}"
    return None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who asks to be admitted. ``tokens`` known now (prompt, after a preemption also output),
    ``total`` = P + out_max, ``ref_hit`` = hit blocks that others reference already."""

    tokens: int
    total: int
    ref_hit: int


@dataclass(frozen=True, slots=True)
class Books:
    """The pool as admission sees it. ``free`` = unreferenced unfenced blocks less the headroom;
    ``promised`` = sum over running requests of need(P + out_max) - held blocks."""

    free: int
    promised: int
    block_size: int


AdmissionPolicy = Callable[[Candidate, Books], bool]


def lifetime(candidate: Candidate, books: Books) -> bool:
    """Admit when everything that anyone may still need is there: never preempts for memory."""
    need = blocks_for(candidate.total, books.block_size)
    return need - candidate.ref_hit + books.promised <= books.free


ADMISSIONS: dict[str, AdmissionPolicy] = {"lifetime": lifetime}


def headroom(config: AdmissionConfig, usable_blocks: int, running: int) -> int:
    """Blocks that admission leaves free for growth: h = ceil(kv_headroom * N), 0 if nothing runs."""
    return math.ceil(config.kv_headroom * usable_blocks) if running else 0
