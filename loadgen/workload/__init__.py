"""What is sent: the table of workloads. Keys are the ``type`` of a scenario's workload block."""

from __future__ import annotations

from loadgen.plan import Workload
from loadgen.workload.agents import Branches, Compaction, Idle, Subagents, Tools
from loadgen.workload.duplicates import Duplicates
from loadgen.workload.fixed import Fixed
from loadgen.workload.lengths import Longest
from loadgen.workload.matrix import Matrix
from loadgen.workload.sessions import Sessions, Slip
from loadgen.workload.shared_prefix import SharedPrefix

WORKLOADS: dict[str, type[Workload]] = {
    "fixed": Fixed,
    "shared_prefix": SharedPrefix,
    "sessions": Sessions,
    "matrix": Matrix,
    "duplicates": Duplicates,
}

__all__ = [
    "WORKLOADS",
    "Branches",
    "Compaction",
    "Duplicates",
    "Fixed",
    "Idle",
    "Longest",
    "Matrix",
    "Sessions",
    "SharedPrefix",
    "Slip",
    "Subagents",
    "Tools",
]
