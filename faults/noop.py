"""The fault that does nothing: the template for a new one.

1. One frozen dataclass in one file; its fields are the YAML keys, its docstring is its help text.
2. Use one of the three doors: ``edit`` (the plan), ``play`` with ``stage.load`` (the client), ``play``
   with ``stage.controls`` (the target).
3. Stamp ``injected`` when it struck, ``proven`` when its effect was seen, ``healed`` when that is gone.
   What only the records show is stamped in ``prove``, after the run.
4. Heal in a ``finally``: it also runs when the run fails and on Ctrl-C.
5. Add one line to FAULTS in faults/table.py. Docs, schema and the table tests follow by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from faults.fault import FaultWindow, Seen, Stage
from faults.when import ns
from loadgen.plan import Plan, Seconds


@dataclass(frozen=True, slots=True)
class Noop:
    """Nothing breaks from ``at`` on for ``for``: a control for drills, and the template for new faults."""

    id: str
    at: Seconds
    for_: Seconds = 0.0

    def edit(self, plan: Plan, rng: np.random.Generator) -> Plan:
        return plan

    def window(self) -> FaultWindow:
        return FaultWindow(self.id, "noop", target="nothing", planned=ns(self.at))

    async def play(self, stage: Stage, window: FaultWindow) -> None:
        await stage.sleep_until(ns(self.at))
        window.injected = window.proven = stage.now()
        try:
            await stage.sleep_until(ns(self.at + self.for_))
        finally:
            window.healed = stage.now()

    def prove(self, window: FaultWindow, seen: Seen) -> None:
        """Nothing is left to show."""
