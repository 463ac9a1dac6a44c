"""The nouns that gateway, worker and scheduler share: a request, how it ends, what truly happened."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Tokens = array  # array("I"): token ids as u32; never changed once it is inside a Request


class Finish(StrEnum):
    """Why a request ended (ENGINE E33). Exactly one per submitted request."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    ERROR = "error"


class Phase(StrEnum):
    """Where a request is (ENGINE E34, E48)."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"


class MissReason(StrEnum):
    """The true reason why a prompt token was not read from cache (ENGINE E18), first that holds."""

    BELOW_BLOCK = "below_block"
    LAST_BLOCK_RULE = "last_block_rule"
    ON_OTHER_WORKER = "on_other_worker"
    EVICTED_TTL = "evicted_ttl"
    EVICTED_CAPACITY = "evicted_capacity"
    PREEMPTED = "preempted"
    WORKER_RESTARTED = "worker_restarted"
    BEING_COMPUTED = "being_computed"
    DIFFERENT_NAMESPACE = "different_namespace"
    NEVER_COMPUTED = "never_computed"


@dataclass(frozen=True, slots=True)
class Miss:
    """A run of blocks with one reason; ``tokens`` because the last block may be partial."""

    reason: MissReason
    first_block: int
    blocks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Bias:
    """Added to the logit of one token before anything else is applied."""

    token: int
    value: float


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. ``temperature`` 0 is greedy; draws are keyed by (seed, choice, index),
    so that batching, preemption and another worker change nothing (ENGINE E6).

    Values that change nothing: top_k 0, top_p 1, min_p 0, repetition_penalty 1, the other penalties 0.
    """

    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[Bias, ...] = ()
    min_tokens: int = 0
    """No end-of-sequence and no stop id before so many tokens, unless the schema leaves nothing else."""
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """Alternatives reported with each token; 0 = only the token's own, None = nothing."""
    schema: str | None = None
    """JSON schema, as text, that the output must meet; ``{"type":"object"}`` is JSON mode."""

    @property
    def looks_back(self) -> bool:
        """Drawing takes the tokens so far, not only the model's logits (Row.known)."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(penalties) or self.schema is not None


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithms of probabilities after bias and penalties, at temperature 1: of the token drawn,
    and of the ``top`` likeliest ones, likeliest first."""

    token: int
    value: float
    top_ids: tuple[int, ...] = ()
    top_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt at one request, as the gateway dispatches it.

    ``id`` is the gateway's own number and unique in its life; ``client_id`` is only remembered.
    ``digests`` are those of the full prompt blocks, chained from ``root`` (ENGINE E7, E8).
    """

    id: int
    tokens: Tokens[int]
    root: bytes
    digests: tuple[bytes, ...]
    out_max: int
    attempt: int = 1
    client_id: str = ""
    sampling: Sampling = Sampling()
    class_: str = "default"
    rank: int = 0
    tenant: str = "default"
    session: str | None = None
    arrived: int = 0
    deadline: int | None = None
    """ns on the engine's clock."""
    n: int = 1
    """Choices: one prefill, then so many outputs (ENGINE E36)."""
    adapter: str | None = None
    """Content digest of the LoRA adapter that it runs with (ENGINE E39)."""
    life: int | None = None
    """ns that its cached blocks are promised to stay after their release (ENGINE E15); None = the
    configured ``cache.ttl``."""


@dataclass(slots=True)
class WorkerTruth:
    """What one worker did for one attempt. Times in ns on the worker's clock, None = did not happen."""

    worker: int = 0
    incarnation: str = ""
    epoch: int = 0
    first_scheduled: int | None = None
    prefill_done: int | None = None
    finished: int | None = None
    cancel_phase: str | None = None
    cancel_flagged: int | None = None
    """When a cancel or a deadline flagged it; None for every other end."""
    reclaimed: int | None = None
    """When the blocks of a flagged request could be handed out again (E34)."""
    steps_after_cancel: int = 0
    """Steps with a row of it that were applied after the flag."""
    steps_to_reclaim: int = 0
    """Steps that were applied between flag and ``reclaimed``."""
    prompt: int = 0
    computed: int = 0
    """Prompt tokens computed for the first time."""
    hit_device: int = 0
    hit_host: int = 0
    hit_disk: int = 0
    generated: int = 0
    recomputed: int = 0
    """Tokens computed again after a preemption."""
    misses: list[Miss] = field(default_factory=list)
    misses_complete: bool = True
    """False when the bounded miss history had forgotten something that a reason may depend on."""
    blocks_peak: int = 0
    steps_prefill: int = 0
    steps_decode: int = 0
    rows_mean: float = 0.0
    step_tokens_mean: float = 0.0
    preemptions: int = 0
    created_cache_tokens: int = 0

    @property
    def hits(self) -> dict[str, int]:
        """Prompt tokens read from cache, by the tier that they came from."""
        return {"device": self.hit_device, "host": self.hit_host, "disk": self.hit_disk}

    @property
    def hit(self) -> int:
        """Prompt tokens read from the cache, whichever tier held them."""
        return sum(self.hits.values())


TruthRow = dict[str, Any]
"""One finished truth row of JOINTS 4: WorkerTruth's fields joined with the gateway's times and route."""
