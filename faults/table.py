"""Every fault that a scenario may name under ``type:``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faults.burst import Burst
from faults.cancel import Cancel
from faults.noop import Noop
from faults.tier import BreakDisk
from faults.worker import FreezeWorker, KillWorker

FAULTS: Mapping[str, type[Any]] = {
    "noop": Noop,
    "cancel": Cancel,
    "burst": Burst,
    "kill_worker": KillWorker,
    "freeze_worker": FreezeWorker,
    "break_disk": BreakDisk,
}
