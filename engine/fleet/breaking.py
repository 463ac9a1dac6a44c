"""Which of its parts an engine may be told to break (FLEET 9)."""

from __future__ import annotations

import difflib

from engine.config import EngineConfig
from engine.messages import DiskFault


def disk_fault(config: EngineConfig, named: str | None) -> DiskFault | None:
    """The fault of this name, None to heal. Raises ValueError saying what there is."""
    names = [fault.value for fault in DiskFault]
    if named is None:
        return None
    if named not in names:
        near = difflib.get_close_matches(named, names, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"disk: {named[:80]!r} is none of {', '.join(names)}, and null to heal it{hint}")
    if config.cache.tiers.disk is None:
        raise ValueError("disk: there is none to break, since cache.tiers.disk is not set")
    return DiskFault(named)
