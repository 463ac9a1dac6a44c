"""Which worker serves a request: a pure choice over a snapshot of the candidates (FLEET F20-F27).

All costs are in prefill blocks. ``cost`` is the default:

    cost(w) = (prefill(w) + new(w) + a * decode(w)) / speed(w)        F21
    new(w)  = max(P - B * credit(w), 1) / B
    credit  = device + 0.75 * host + 0.25 * disk                      in blocks; less where loading is dear

So a holder wins while its extra wait is below the prefill that its cache saves (F22), and a backlog of
P/B blocks more than elsewhere cannot be won back by any cache (F23).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.config import CostModel

TIE_BLOCKS = 0.5
HOST_CREDIT = 0.75
DISK_CREDIT = 0.25


@dataclass(slots=True)  # one for each worker and decision: a frozen one takes three times as long to make
class Overlap:
    """Leading prompt blocks that a worker has, by tier: each extends the run of the one before."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def blocks(self) -> int:
        return self.device + self.host + self.disk

    @property
    def credit(self) -> float:
        return self.device + HOST_CREDIT * self.host + DISK_CREDIT * self.disk


@dataclass(slots=True)  # likewise
class Candidate:
    """One worker as the decision sees it. ``prefill`` tokens and ``decode`` blocks are of requests
    dispatched to it or waiting for it; ``running`` rows and their ``contexts`` only rank time (F23)."""

    worker: int
    prefill: int = 0
    decode: int = 0
    requests: int = 0
    running: int = 0
    contexts: int = 0
    overlap: Overlap = field(default_factory=Overlap)
    worth: float = math.inf
    """What the overlap saves less what loading it costs by the worker's rates, in blocks: the credit is no
    more."""
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for. ``left`` is the time to the deadline in s, None without one."""

    request: int
    prompt: int
    left: float | None = None
    session: int | None = None
    """The session's last worker."""
    waits_for: int | None = None
    """The worker that it chose before and waits for: kept while costs move by no more than a tie."""
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for every decision of a gateway. ``chunk`` is the most prompt tokens of one step."""

    block_size: int = 16
    decode_weight: float = 1.0
    chunk: int = 256
    seed: int = 0
    cost: CostModel = CostModel()
    last: int | None = None
    """The worker chosen last, whoever asked."""


@dataclass(slots=True)  # likewise
class Terms:
    """The cost of one candidate in blocks, and what ``ttft`` (s) the request can expect there."""

    prefill: float
    new: float
    decode: float
    credit: float
    cost: float
    ttft: float


@dataclass(frozen=True, slots=True)
class Choice:
    worker: int
    reason: str
    """``overlap``, ``load``, ``session``, ``escape``, ``only``, ``retry`` or ``wait``."""
    predicted_hit: int
    """Tokens."""
    terms: Mapping[int, Terms]


def terms_of(query: Query, candidate: Candidate, setting: Setting, credit: float) -> Terms:
    """F21's terms and F23's TTFT. Decode blocks rank, but do not delay the first token."""
    block = setting.block_size
    prefill = candidate.prefill / block
    new = max(query.prompt - block * credit, 1) / block
    decode = setting.decode_weight * candidate.decode
    ttft = _ttft((prefill + new) * block, query.prompt, candidate, setting)
    return Terms(prefill, new, decode, credit, (prefill + new + decode) / candidate.speed, ttft)


def _ttft(tokens: float, prompt: int, candidate: Candidate, setting: Setting) -> float:
    cost = setting.cost
    rows = cost.c * candidate.running + cost.d * candidate.contexts
    chunk_seconds = cost.a + cost.b * setting.chunk + rows
    step = cost.a + rows
    return tokens * chunk_seconds / setting.chunk + step + cost.g0 + cost.g1 * prompt


def least_cost(query: Query, candidates: Sequence[Candidate], setting: Setting) -> Choice:
    """``cost``: the least F21 over what the candidates hold."""
    terms = {c.worker: terms_of(query, c, setting, _useful(query, c, setting)) for c in candidates}
    return _cheapest(query, candidates, setting, terms)


def load_only(query: Query, candidates: Sequence[Candidate], setting: Setting) -> Choice:
    """``load_only``: the least F21 with credit 0."""
    terms = {c.worker: terms_of(query, c, setting, 0.0) for c in candidates}
    return _cheapest(query, candidates, setting, terms)


def round_robin(query: Query, candidates: Sequence[Candidate], setting: Setting) -> Choice:
    """``round_robin``: the next worker by number after the one chosen last."""
    terms = {c.worker: terms_of(query, c, setting, _useful(query, c, setting)) for c in candidates}
    workers = sorted(terms)
    if query.waits_for in terms:  # a turn that was taken is not taken again
        chosen = query.waits_for
    else:
        last = -1 if setting.last is None else setting.last
        chosen = next((worker for worker in workers if worker > last), workers[0])
    assert chosen is not None
    reason = "only" if len(workers) == 1 else "load"
    return Choice(chosen, reason, _predicted(query, chosen, candidates, setting), terms)


Routing = Callable[[Query, Sequence[Candidate], Setting], Choice]
"""Chooses among at least one candidate, full ones included (F29). Pure."""

ROUTINGS: Mapping[str, Routing] = {
    "cost": least_cost,
    "load_only": load_only,
    "round_robin": round_robin,
}


def _cheapest(
    query: Query, candidates: Sequence[Candidate], setting: Setting, terms: Mapping[int, Terms]
) -> Choice:
    best = min(t.cost for t in terms.values())
    tied = [c for c in candidates if terms[c.worker].cost <= best + TIE_BLOCKS]
    chosen, why = _settle_tie(query, tied, setting)
    escape = _escape(query, chosen.worker, terms)
    if escape is not None:
        chosen, why = next(c for c in candidates if c.worker == escape), "escape"
    if query.retry:
        why = "retry"
    elif len(candidates) == 1:
        why = "only"
    elif why == "":
        credits = [t.credit for t in terms.values()]
        most = max(credits)
        why = "overlap" if terms[chosen.worker].credit == most > min(credits) else "load"
    return Choice(chosen.worker, why, _predicted(query, chosen.worker, candidates, setting), terms)


def _settle_tie(query: Query, tied: Sequence[Candidate], setting: Setting) -> tuple[Candidate, str]:
    """F25, and before it the wait already begun (F29): never the order of a list."""
    for preferred, why in ((query.waits_for, ""), (query.session, "session")):
        for candidate in tied:
            if candidate.worker == preferred and len(tied) > 1:
                return candidate, why
    fewest = min(c.requests for c in tied)
    least = [c for c in tied if c.requests == fewest]
    if len(least) == 1:
        return least[0], ""
    return min(least, key=lambda c: _hash(setting.seed, query.request, c.worker)), ""


def _escape(query: Query, winner: int, terms: Mapping[int, Terms]) -> int | None:
    """F23: the cheapest that keeps the deadline, if the winner breaks it and another does not."""
    if query.left is None or terms[winner].ttft <= query.left:
        return None
    keeping = [(t.cost, worker) for worker, t in terms.items() if t.ttft <= query.left]
    return min(keeping)[1] if keeping else None


def _useful(query: Query, candidate: Candidate, setting: Setting) -> float:
    """Credit after E17: at least one token is computed, so at most floor((P-1)/B) blocks are hit."""
    if not candidate.worth:
        return 0.0
    most = (query.prompt - 1) // setting.block_size
    have = candidate.overlap
    device = min(have.device, most)
    host = min(have.host, most - device)
    credit = Overlap(device, host, min(have.disk, most - device - host)).credit
    return min(credit, candidate.worth)


def _predicted(query: Query, worker: int, candidates: Sequence[Candidate], setting: Setting) -> int:
    have = next(c.overlap for c in candidates if c.worker == worker)
    blocks = min(have.blocks, (query.prompt - 1) // setting.block_size)
    return blocks * setting.block_size


def _hash(seed: int, request: int, worker: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{request}:{worker}".encode(), digest_size=8).digest()
