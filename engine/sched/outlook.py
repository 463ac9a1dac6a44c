"""What is to be expected of the requests that are here: how much each may still add, and how long it stays.

``estimate`` trusts a ratio that sinks while all goes well and is set anew by each preemption; ``peak`` and
backfill trust the lengths of answers that have ended here (ENGINE E23, E25).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.sched.admission import Claim
from engine.sched.rates import OutputLengths
from engine.sched.sequence import Sequence

FIRST_RATIO, LAST_RATIO, RATIO_STEPS = 0.7, 0.098, 600
"""rho of ``estimate`` sinks from the first to the last in so many steps."""
SPARE_TOKENS = 20
"""After a preemption rho allows for so many more tokens of each running request."""


class Outlook:
    """Expectations of one worker. ``lengths`` must be told of each answer that ends."""

    def __init__(self, lengths: OutputLengths) -> None:
        self.lengths = lengths
        self.ratio = FIRST_RATIO

    def stepped(self) -> None:
        """A step went by without a preemption, or with one that has been reported."""
        self.ratio = max(LAST_RATIO, self.ratio - (FIRST_RATIO - LAST_RATIO) / RATIO_STEPS)

    def preempted(self, running: Iterable[Sequence]) -> None:
        """Somebody had to go; ``running`` are those who stay: rho = (sum out + 20 n) / sum out_max."""
        out = most = 0
        for sequence in running:
            out += sequence.generated + SPARE_TOKENS
            most += sequence.request.out_max
        if most:
            self.ratio = min(1.0, out / most)

    def claim(self, sequence: Sequence, sure: bool = False, ref_hit: int = 0) -> Claim:
        """Its claim on the pool. ``sure``: its answer is expected to be as long as it may be."""
        likely, choices = self.likely(sequence, sure), sequence.forks + 1
        return Claim(len(sequence.tokens), sequence.rem, likely, choices, len(sequence.table), ref_hit)

    def likely(self, sequence: Sequence, sure: bool = False) -> int:
        """Tokens that it will probably still add: min(out_max, max(1.1 * out, typical of the class)) - out,
        at least the one that comes next; all that it may with ``sure``, or if it goes on after an end."""
        rem, request = sequence.total - len(sequence.tokens), sequence.request
        if sure or request.sampling.ignore_eos:
            return rem
        out = sequence.generated
        typical = self.lengths.expected(request.class_, request.out_max)
        return max(1, min(rem, math.ceil(max(1.1 * out, typical)) - out))


def steps_left(uncomputed: int, output: int, chunk: int) -> int:
    """Steps until a request ends that has so many tokens to compute before it draws the next, and then
    ``output`` to draw: life(r) = u/R(rows) + E[out]*t_step(rows) with R(rows) = chunk/t_step (E40), in
    units of t_step. The last chunk draws the first token."""
    return -(-uncomputed // chunk) - 1 + output
