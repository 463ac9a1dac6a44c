"""One exchange as it was seen, not yet understood: what the send path keeps (MEASUREMENT C38).

The driver keeps a `Raw` for each request in the air and hands it on, as `Closed`, to a desk that makes a
record of it. In a live run the desk is another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.log import Log, make_log
from loadgen.outcomes import Cut
from loadgen.transport import Ending
from results.record import Outcome


@dataclass(slots=True)
class Raw:
    """Stamps are ns on the client's clock, None = did not happen.

    ``reads`` holds each read that brought body bytes: its stamp, the kernel's receive stamp (0 = none) and
    the bytes.
    """

    conn: int | None = None
    conn_new: bool = False
    sent: int | None = None
    headers_at: int | None = None
    headers_real: int = 0
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reads: Log = field(default_factory=make_log)
    ending: Ending | None = None
    detail: str = ""

    @property
    def users(self) -> list[int]:
        return self.reads.users

    @property
    def reals(self) -> list[int]:
        return self.reads.reals

    @property
    def chunks(self) -> list[bytes]:
        return self.reads.chunks


@dataclass(slots=True)
class Closed:
    """One attempt that is over. Times in ns on the client's clock."""

    shot: int
    due: int
    dequeued: int
    start: int
    closed: int
    raw: Raw
    cut: Cut | None = None
    attempt: int = 1
    cap_wait: int = 0
    """ns that a declared cap held the request back; part of start - due."""
    last: bool = True
    """False for an attempt that is followed by another one."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A shot that never goes out. ``due`` in ns since t0, if it ever became due; ``attempt`` is more than 1
    if earlier ones did go out."""

    shot: int
    phase: str
    why: str
    due: int | None = None
    outcome: Outcome = Outcome.NOT_SENT
    attempt: int = 1
