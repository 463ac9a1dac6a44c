"""Who comes when and asks for what: the protocols that a plan is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from loadgen.shot import Part, Seconds, Share
from loadgen.tenants import check_shares

LEAST_REQUEST_S = 0.05
"""What a request is taken to last at least, where a closed loop must be planned before it is known."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A session about to be planned: the ``index``-th of its load, due at ``due_ns`` (since t0). In a
    closed loop, where that is not known, ``due_ns`` is about the earliest time it can be."""

    index: int
    due_ns: int
    first_id: int
    """Id of its first shot; its turn k gets ``first_id + k``."""
    key: str
    """Prefix of the text keys of its load."""
    source: np.random.Generator | Callable[[], np.random.Generator]
    """What ``rng`` is, or what makes it when it is first asked for: seeding one takes longer than all the
    rest, and many workloads draw nothing. It must give the same object each time."""

    @property
    def rng(self) -> np.random.Generator:
        """The session's own stream of draws."""
        return self.source if isinstance(self.source, np.random.Generator) else self.source()


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session; ``after_ns`` = think time after the answer before it (not the first)."""

    prompt: tuple[Part, ...]
    n_out: int
    after_ns: int | None = None
    parent: int | None = None
    """Index, among the turns of this session, of the one that it follows. None = the last one before it
    in its lineage and branch, or where that begins, the one before it."""
    branch: int = 0
    lineage: int = 0
    """0 = the session itself; k > 0 = its k-th sub-agent, which is planned as a session of its own on the
    same slice (data rule f)."""
    adapter: str | None = None


class Arrival(Protocol):
    """When sessions start (loadgen.arrivals)."""

    def due_times(self, span: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """ns since the start of the span, sorted, each in [0, span); ``span`` in s."""

    def expected(self, span: float) -> float:
        """How many sessions about start in ``span`` s, or how much else must be held to plan them: to
        refuse what no plan could hold."""


@runtime_checkable
class ClosedLoop(Arrival, Protocol):
    """Users who wait. ``due_times`` says when each begins; the next session of a user comes ``think`` s
    after the end of the one before, however that ended."""

    @property
    def think(self) -> Seconds: ...

    @property
    def requests(self) -> int | None:
        """A user begins no session after so many planned requests. None = as many as fit into the time of
        load if every request took only ``LEAST_REQUEST_S``."""


class Workload(Protocol):
    """What a session sends (loadgen.workload)."""

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        """At least one turn; the first opens the session."""


@dataclass(frozen=True, slots=True)
class Load:
    """One line of a scenario's ``load``. A trace may be both its ``arrival`` and its ``workload``."""

    class_: str
    arrival: Arrival
    workload: Workload
    tenant: str = "default"
    rank: int = 0
    tenants: Mapping[str, Share] | None = None
    """The tenant of each session is drawn by these shares, which sum to 1; None = all are ``tenant``'s.
    ``loadgen.tenants.zipf`` makes a long tail of them."""
    adapters: Mapping[str, Share] | None = None
    """The adapter that each session asks for, by these shares; what is left of 1 asks for the model itself.
    A recorded session keeps its own."""

    def __post_init__(self) -> None:
        if self.tenants is not None:
            check_shares(self.tenants)
        if self.adapters is not None:
            check_shares(self.adapters, "adapter", whole=False)

    @property
    def closed(self) -> bool:
        """Whether its due times depend on answers; latencies then have the send clock only."""
        return isinstance(self.arrival, ClosedLoop)
