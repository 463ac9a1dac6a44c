"""Turns the load's snapshots and the faults' windows into what the live view shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.fault import FaultWindow
from headrace.console import Tick, View
from loadgen.plan import Phases

_STAGES = ("injected", "proven", "healed")


@dataclass(slots=True)
class Watcher:
    """``faults`` is set when they begin to play."""

    view: View
    phases: Phases
    faults: Sequence[FaultWindow] = ()
    _said: set[tuple[str, str]] = field(default_factory=set)

    def on_tick(self, snapshot: Mapping[str, Any]) -> None:
        """Once a second, with loadgen.progress.Snapshot as a dict."""
        self._tell_faults()
        classes = list(snapshot["classes"].values())
        done = {k: sum(row["outcomes"].get(k, 0) for row in classes) for k in ("completed", "not_sent")}
        ended = sum(sum(row["outcomes"].values()) for row in classes)
        self.view.tick(
            Tick(
                elapsed=max(0.0, snapshot["t"] / 1e9),
                total=self.phases.load_ns / 1e9,
                phase=snapshot["phase"],
                sent=sum(row["sent"] for row in classes),
                planned=sum(row["planned"] for row in classes),
                in_flight=snapshot["in_flight"],
                completed=done["completed"],
                failed=ended - done["completed"] - done["not_sent"],
                ttft_ms=_slowest(classes, "ttft_sched_s"),
                itl_ms=_slowest(classes, "itl_s"),
                tokens=sum(row["tokens"] for row in classes),
                faults=tuple(w.id for w in self.faults if w.injected is not None and w.healed is None),
            )
        )

    def say(self, text: str) -> None:
        self._tell_faults()
        self.view.note(text)

    def _tell_faults(self) -> None:
        for window in self.faults:
            for stage in _STAGES:
                at = getattr(window, stage)
                if at is not None and (window.id, stage) not in self._said:
                    self._said.add((window.id, stage))
                    self.view.note(f"{at / 1e9:6.1f} s  {window.id} ({window.type}) {stage}")
            if window.error is not None and (window.id, "error") not in self._said:
                self._said.add((window.id, "error"))
                self.view.note(f"          {window.id} ({window.type}): {window.error}")


def _slowest(classes: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The largest of the classes' medians, in ms."""
    return max((row[key] * 1e3 for row in classes if row[key] is not None), default=None)
