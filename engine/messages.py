"""What the gateway and its workers say to each other (JOINTS 9).

In virtual time the values are handed over as they are; between processes each travels as a
4-byte big-endian length and a msgpack list ``[kind, {field: value}]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.request import Finish, Logprob, Request, WorkerTruth


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Idempotent; may precede its Submit, repeat, or name an unknown id (ENGINE E34)."""

    id: int
    reason: Finish = Finish.CANCELLED
    """STOP when the gateway saw a stop string, EXPIRED when a deadline passed."""
    choice: int | None = None
    """End this choice alone; None = the request with all its choices. Of no effect before its first token
    and once it has ended."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Hand a request back that has not started (FLEET F29). Answered by Refused(reason="recalled")."""

    id: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Breakpoint (ENGINE E48): the first request that matches pauses when it, or the first of its choices,
    reaches ``phase``; with all its choices.

    ``phase`` is ``admitted``, ``prefill:k`` (after chunk k), ``transfer:k`` (after the k-th step that loaded
    blocks for it) or ``decode:n`` (before that commit).
    ``request`` None matches any request on the worker.
    """

    hold_id: int
    phase: str
    request: str | None = None
    """The client's request id."""


@dataclass(frozen=True, slots=True)
class Release:
    hold_id: int


@dataclass(frozen=True, slots=True)
class Configure:
    """New values for controls, applied between steps; keys as in ``/admin/config``."""

    changes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ballast:
    """Take ``blocks`` out of the pool (a fault); 0 gives them back."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Drop every cached block; a new epoch begins (ENGINE E44)."""


class DiskFault(StrEnum):
    """What is wrong with the disk tier (a fault)."""

    FULL = "full"
    """Nothing more can be written: what is spilled is lost."""
    CORRUPT = "corrupt"
    """What is read has a wrong bit: its checksum tells, and the blocks are computed again."""


@dataclass(frozen=True, slots=True)
class BreakDisk:
    """From now on the disk tier fails so; None: it works again, and what is on it is whole."""

    fault: DiskFault | None = None


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Make a LoRA adapter resident, from a PEFT folder whose content has this digest (ENGINE E39).
    Answered by AdapterState."""

    digest: str
    folder: str


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Drop it once no request runs with it. Answered by AdapterState."""

    digest: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Take nothing new, hand the backlog back, finish what runs."""


@dataclass(frozen=True, slots=True)
class AskAudit:
    """Answered by AuditReport."""

    ask_id: int


ToWorker = (
    Submit
    | Cancel
    | Recall
    | Hold
    | Release
    | Configure
    | Ballast
    | Clear
    | BreakDisk
    | LoadAdapter
    | UnloadAdapter
    | Drain
    | AskAudit
)


@dataclass(frozen=True, slots=True)
class Load:
    """A worker's own view of its load, in every heartbeat. ``ack`` = last dispatch number seen."""

    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    """Prompt tokens of its requests not yet computed."""
    decode_blocks: int = 0
    """Blocks referenced."""
    free_blocks: int = 0
    ack: int = 0
    prefill_rate: float | None = None
    """R_prefill and R_decode in tokens/s over its last 30 busy s (ENGINE E40); None before any sample."""
    decode_rate: float | None = None
    factors: tuple[float, ...] = (1.0, 1.0, 1.0)
    """How long computing, moving between device and host, and between host and disk take, in times of what
    the configuration says: by these it decides what to restore (ENGINE E45)."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of an incarnation, after its warm-up."""

    worker: int
    incarnation: str
    epoch: int
    blocks: int
    block_size: int
    max_model_len: int
    block_bytes: int = 0
    """What moves for a block between tiers; 0 without lower tiers."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    incarnation: str
    epoch: int
    step: int
    step_started: int | None
    """ns; None while no step runs."""
    state: str
    """``ready``, ``draining`` or ``loading``."""
    load: Load
    metrics: dict[str, Any] = field(default_factory=dict)
    """Cumulative meter snapshot (engine.telemetry.Meter.snapshot)."""


@dataclass(slots=True)  # one for each token: a frozen one takes three times as long to make
class TokensOut:
    """New tokens of one choice; ``logprobs`` one for each of them, or none at all."""

    id: int
    attempt: int
    ids: tuple[int, ...]
    choice: int = 0
    logprobs: tuple[Logprob, ...] = ()
    finish: Finish | None = None
    """Set when this choice has ended while others of the request go on: its reason, in a message of its own
    behind the last token. Done tells the reason of the last choice."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What one step has drawn for all those that decode in lockstep: a token each, in columns."""

    ids: tuple[int, ...]
    attempts: tuple[int, ...]
    choices: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: dict[int, tuple[Logprob, ...]] = field(default_factory=dict)
    """By place, of those that want them."""

    def apart(self) -> Iterator[TokensOut]:
        """The same, one by one."""
        rows = zip(self.ids, self.attempts, self.choices, self.tokens, strict=True)
        for place, (id, attempt, choice, token) in enumerate(rows):
            yield TokensOut(id, attempt, (token,), choice, self.logprobs.get(place, ()))


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill progress: prompt tokens computed or hit so far."""

    id: int
    attempt: int
    computed: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Not taken, nothing computed: the request keeps its place at the gateway."""

    id: int
    attempt: int
    reason: str
    """``backlog``, ``draining`` or ``recalled``."""


@dataclass(frozen=True, slots=True)
class Done:
    """The one terminal message of an attempt that was taken."""

    id: int
    attempt: int
    reason: Finish
    truth: WorkerTruth
    error: str | None = None
    own_fault: bool = False
    """The error lies in the request itself: no other worker would do better."""


@dataclass(slots=True)  # not frozen, for the same reason
class KvEvent:
    """``stored`` (digests with their parent), ``removed`` (with a cause) or ``cleared``."""

    kind: str
    digests: tuple[bytes, ...] = ()
    parent: bytes | None = None
    cause: str | None = None
    tier: str = "device"
    """Where the blocks lie or lay: ``device``, ``host`` or ``disk``."""


@dataclass(frozen=True, slots=True)
class KvEvents:
    epoch: int
    seq: int
    events: tuple[KvEvent, ...]


@dataclass(frozen=True, slots=True)
class Held:
    hold_id: int
    id: int
    client_id: str
    phase: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    ask_id: int
    audit: dict[str, Any]
    """``{"blocks": N, "free":, "fenced":, "referenced":, "waiting":, "running":, "violations": [..]}``"""


@dataclass(frozen=True, slots=True)
class AdapterState:
    """``loaded`` tells whether the adapter is resident now; ``error`` why it could not be loaded."""

    digest: str
    loaded: bool
    error: str | None = None
    seconds: float | None = None
    """What it took to load, where a step did nothing else."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot go on; it exits after this."""

    reason: str


FromWorker = (
    Hello
    | Heartbeat
    | TokensOut
    | StepTokens
    | Progress
    | Refused
    | Done
    | KvEvents
    | Held
    | AuditReport
    | AdapterState
    | Failed
)
