"""Who is let in: the gate at submit (ENGINE E22) and admission into the pool (ENGINE E23).

Both are pure arithmetic. need(t) = ceil(t/B); N = usable blocks; P = prompt tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    n: int = 1,
) -> int:
    """``out_max``, the most tokens of each of its ``n`` choices (ENGINE E22); raises GateRefused.

    out_max = min(max_tokens or the class's default, class maximum, context - P), where the context is
    ``min(max_model_len, N*B)``; the choices must find room in the pool together. A *given* ``max_tokens``
    above the others is refused, or cut when ``over_length`` is ``clamp``. Hence every accepted request
    fits into the pool alone.
    """
    capacity = usable_blocks * block_size
    context = capacity if max_model_len is None else min(max_model_len, capacity)
    _check_prompt(prompt_tokens, max_tokens, class_config, context, usable_blocks, block_size)
    room = min(context - prompt_tokens, _room_beside(prompt_tokens, usable_blocks, block_size, n))
    if room < 1:
        raise GateRefused(
            "too_many_choices",
            f"{n} choices do not fit together: "
            + _needs(prompt_tokens, max_tokens or 1, usable_blocks, block_size, n),
        )
    if class_config.max_total is not None:
        room = min(room, class_config.max_total - prompt_tokens)
    limit = room if class_config.max_output is None else min(room, class_config.max_output)
    asked = class_config.default_output if max_tokens is None else max_tokens
    if max_tokens is not None and asked > limit and admission_config.over_length == "reject":
        raise GateRefused(
            "max_tokens_too_large",
            f"max_tokens {asked} is more than the {limit} this request may generate: prompt {prompt_tokens}, "
            f"context {context}{_limits(class_config)}; "
            + _needs(prompt_tokens, asked, usable_blocks, block_size, n),
        )
    return min(asked, limit)


def _limits(limits: ClassConfig) -> str:
    """Those that the class has, to be appended."""
    named = {"output": limits.max_output, "total": limits.max_total}
    return "".join(f", class {name} limit {most}" for name, most in named.items() if most is not None)


def _check_prompt(
    prompt: int, max_tokens: int | None, limits: ClassConfig, context: int, usable: int, block_size: int
) -> None:
    if prompt < 1:
        raise GateRefused("empty_prompt", "the prompt has no tokens; send at least one")
    if max_tokens is not None and max_tokens < 1:
        raise GateRefused("invalid_max_tokens", f"max_tokens is {max_tokens}; it must be at least 1")
    if prompt >= context:
        raise GateRefused(
            "context_length_exceeded",
            f"the prompt has {prompt} tokens and the context {context}, which leaves no room for output; "
            + _needs(prompt, max_tokens or 1, usable, block_size),
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


def unit_blocks(prompt: int, tokens: int, block_size: int, n: int = 1) -> int:
    """Blocks of ``n`` choices of ``tokens`` each, which share the full blocks of their ``prompt``:
    floor(P/B) + n * (need(tokens) - floor(P/B)) (ENGINE E22)."""
    shared = prompt // block_size
    return shared + n * (blocks_for(tokens, block_size) - shared)


def _room_beside(prompt: int, usable: int, block_size: int, n: int) -> int:
    """Most output tokens of each of ``n`` choices that fit into the pool together; may be negative."""
    shared = prompt // block_size
    return (shared + (usable - shared) // n) * block_size - prompt


def _needs(prompt: int, output: int, usable: int, block_size: int, n: int = 1) -> str:
    need, tokens = unit_blocks(prompt, prompt + output, block_size, n), prompt + output
    each = "" if n == 1 else f" in each of {n} choices"
    return f"{tokens} tokens{each} need {need} blocks of {block_size}, {usable} are usable"


def unservable(
    request: Request, max_model_len: int, usable_blocks: int, block_size: int, vocabulary: int
) -> str | None:
    """Why a worker could not serve this request even alone; None is what the gate guarantees."""
    prompt, output, n = len(request.tokens), request.out_max, request.n
    if not request.tokens or output < 1 or n < 1:
        return f"a prompt of {prompt} tokens and {n} choices of {output} to generate is no request"
    needs = _needs(prompt, output, usable_blocks, block_size, n)
    if prompt + output > max_model_len:
        return f"{needs}, the context is {max_model_len}"
    if unit_blocks(prompt, prompt + output, block_size, n) > usable_blocks:
        return needs
    if max(request.tokens) >= vocabulary:
        return f"token id {max(request.tokens)} is outside the vocabulary of {vocabulary}"
    return None


def headroom(config: AdmissionConfig, usable_blocks: int, running: int) -> int:
    """Blocks that admission leaves free for growth: h = ceil(kv_headroom * N), 0 if nothing runs."""
    return math.ceil(config.kv_headroom * usable_blocks) if running else 0


class Claim(NamedTuple):
    """One request's claim on the pool: of who asks to be admitted, or of who runs.

    Each of its ``choices`` (more than 1 only until they fork) has ``tokens`` (prompt and output so far),
    may add ``rem`` more at most, and will probably add ``likely``. ``held`` = blocks in its table;
    ``ref_hit`` = blocks that it would read from the cache and that others hold already.
    """

    tokens: int
    rem: int
    likely: int
    choices: int = 1
    held: int = 0
    ref_hit: int = 0

    def blocks(self, more: int, block_size: int) -> int:
        """Blocks that it takes once each of its choices has added ``more`` tokens."""
        return unit_blocks(self.tokens, self.tokens + more, block_size, self.choices)


@dataclass(frozen=True, slots=True)
class Books:
    """The pool as admission sees it, in blocks.

    ``usable`` = N less the headroom; ``free`` = unreferenced unfenced blocks less the headroom;
    ``promised`` = sum over running requests of what they may still take beyond what they hold;
    ``referenced`` = what they hold, shared blocks counted once. ``ratio`` is rho of ``estimate``.
    ``running`` gives their claims; only policies that look at each of them call it.
    """

    block_size: int
    usable: int
    free: int
    promised: int = 0
    referenced: int = 0
    ratio: float = 1.0
    alone: bool = False
    """Nothing runs."""
    running: Callable[[], Sequence[Claim]] = tuple


AdmissionPolicy = Callable[[Claim, Books], bool]

FAR = 4096
"""Output tokens beyond this are not looked at by ``estimate``."""


def prompt(claim: Claim, books: Books) -> bool:
    """Admit when the whole prompt fits, not only its first chunk."""
    return claim.blocks(0, books.block_size) - claim.ref_hit <= books.free


def estimate(claim: Claim, books: Books) -> bool:
    """Admit when prompt and answer fit beside the share ``ratio`` of what the running may still add."""
    size = books.block_size
    growth = sum(each.choices * min(each.rem, FAR) for each in books.running())
    copies = (claim.choices - 1) * (claim.tokens % size)
    own = claim.tokens - size * claim.ref_hit + copies + claim.choices * min(claim.rem, FAR)
    return books.ratio * growth + own + size <= size * books.free


def peak(claim: Claim, books: Books) -> bool:
    """Admit when the most that all will ever hold together fits.

    In order of ``likely``, longest first: when number k ends, k+1 of them are left, each with the tokens
    that it has now and likely_k more, and each may waste B-1 in its last block. Blocks that several hold
    count once: all of those now counted twice, but for what those who have left by then held at most.
    """
    size = books.block_size
    blocks = claim.blocks(0, size)
    claims = sorted((*books.running(), claim._replace(held=blocks)), key=lambda each: -each.likely)
    total = sum(each.held for each in claims)
    twice = total - (books.referenced + blocks - claim.ref_hit)
    alive = tokens = held = 0
    for each in claims:
        alive += each.choices
        tokens += each.tokens + (each.choices - 1) * (each.tokens % size)
        held += each.held
        shared = max(0, twice - (total - held))
        if each.likely * alive + tokens - shared * size + alive * (size - 1) > books.usable * size:
            return False
    return True


def lifetime(claim: Claim, books: Books) -> bool:
    """Admit when everything that anyone may still need is there: never preempts for memory."""
    return claim.blocks(claim.rem, books.block_size) - claim.ref_hit + books.promised <= books.free


ADMISSIONS: dict[str, AdmissionPolicy] = {
    "prompt": prompt,
    "estimate": estimate,
    "peak": peak,
    "lifetime": lifetime,
}


def admits(policy: str, claim: Claim, books: Books) -> bool:
    """The one check of E23. An estimate keeps nobody out of an empty pool that has room for all it may
    ever need, which the gate has made sure of: else it would wait for ever."""
    return ADMISSIONS[policy](claim, books) or (books.alone and lifetime(claim, books))
