"""What a run needs of its target and of its load, wherever both live: in processes, or in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from faults.fault import Controls, LoadControls
from loadgen.clock import Clock
from loadgen.plan import Plan
from loadgen.rules import Rules
from loadgen.text import Unit
from results.attribution.observed import Observed

LEAD_NS = 3_000_000_000
"""From the load being told to start until t0: bodies are made at least 2 s before they are due."""
RECORDS = "records-0.arrow"
"""In the run directory: what the first load process writes while it runs; the next ones count on."""
RECORD_STREAMS = "records-*.arrow"
ATTEMPTS = "attempts-0.arrow"
"""The same for attempts that were followed by another one."""
TEXTS = "texts.jsonl"
"""In the run directory, only with ``--keep-text``."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What the load is to fire, and how."""

    plan: Plan
    folder: Path
    unit: Unit
    nonce: str | None
    tag: str
    whole: tuple[str, ...]
    rules: Rules = Rules()
    processes: int = 1
    """Load processes of a live run; the plan has as many slices."""
    connections: int | None = None
    keep_text: bool = False
    tokenizer: str | None = None
    """Path of the target's tokenizer.json, for prompts of exact lengths."""
    ray_address: str | None = None
    """Of the Ray cluster that places the load processes; None = they run on this machine."""


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """What remains of the load when all of it has its outcome."""

    signals: dict[str, Any]
    interrupted: bool
    observed: Sequence[Observed] | None = None
    observe_error: str | None = None
    lost: str | None = None
    """Why the load process died before its end, if it did."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For the manifest."""


OnTick = Callable[[dict[str, Any]], None]
"""Gets the load's snapshot (loadgen.progress.Snapshot as a dict) about once a second."""


class Load(LoadControls, Protocol):
    """The load of one run. ``start`` once, with t0 on the site's clock."""

    def start(self, t0: int) -> None: ...
    async def finished(self) -> LoadEnd: ...
    def stop(self) -> None:
        """End the load now; ``finished`` still returns. Idempotent."""

    async def close(self) -> None:
        """Whatever still runs of it is ended."""


class Site(Protocol):
    """A target that is ready for load."""

    @property
    def clock(self) -> Clock: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def own(self) -> bool: ...
    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest."""

    async def scrape(self) -> str:
        """The text of its /metrics. Raises OSError or RuntimeError."""

    async def load(self, order: LoadOrder, on_tick: OnTick) -> Load:
        """A load that is ready to start."""

    def died(self) -> str | None:
        """Why the target is gone by itself; None while it lives."""


@dataclass(slots=True)
class NoControls:
    """Door 3 of a target that has none: each verb says so."""

    why: str
    asked: list[str] = field(default_factory=list)

    async def state(self) -> dict[str, Any]:
        raise self._refused("state")

    async def audit(self) -> dict[str, Any]:
        raise self._refused("audit")

    async def kill(self, worker: int) -> None:
        raise self._refused("kill")

    async def freeze(self, worker: int) -> None:
        raise self._refused("freeze")

    async def thaw(self, worker: int) -> None:
        raise self._refused("thaw")

    async def hold(self, phase: str, request: str | None = None, worker: int | None = None) -> int:
        raise self._refused("hold")

    async def held(self, hold_id: int, timeout: float) -> dict[str, Any] | None:
        raise self._refused("held")

    async def release(self, hold_id: int) -> None:
        raise self._refused("release")

    async def tier(self, disk: str | None) -> None:
        raise self._refused("tier")

    async def truth(self) -> list[dict[str, Any]]:
        raise self._refused("truth")

    def _refused(self, verb: str) -> NotImplementedError:
        self.asked.append(verb)
        return NotImplementedError(f"{verb}: {self.why}")
