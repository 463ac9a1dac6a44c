"""What a good request costs, as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.report.charts import digits
from results.report.words import NOTHING


def small(value: float | None) -> str:
    """A number that may be far below 1, such as a price: three digits of it."""
    return NOTHING if value is None else f"{value:.3g}"


def economy_words(summary: Mapping[str, Any]) -> str:
    """As far as it is known; empty where nothing is."""
    block = summary["economy"]
    said = []
    if (cost := block["cost_per_good"]) is not None:
        replicas = digits(block["replica_seconds"])
        said.append(f"a good request costs {small(cost)} (of {replicas} replica seconds)")
    if (energy := block["energy_per_good"]) is not None:
        devices = ", ".join(block["devices"])
        said.append(f"{'it' if said else 'a good request'} takes {small(energy)} J ({devices})")
    words = "; ".join(said)
    return f"{words[0].upper()}{words[1:]}." if words else ""
