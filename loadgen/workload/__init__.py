"""What is sent: the table of workloads. Keys are the ``type`` of a scenario's workload block."""

from __future__ import annotations

from loadgen.plan import Workload
from loadgen.workload.fixed import Fixed
from loadgen.workload.sessions import Sessions, Slip
from loadgen.workload.shared_prefix import SharedPrefix

WORKLOADS: dict[str, type[Workload]] = {
    "fixed": Fixed,
    "shared_prefix": SharedPrefix,
    "sessions": Sessions,
}

__all__ = ["WORKLOADS", "Fixed", "Sessions", "SharedPrefix", "Slip"]
