"""What a number of tokens in a workload may be."""

from __future__ import annotations

MOST_TOKENS = 100_000_000
"""Columns of the plan and the records are u32."""


def lengths(least: int = 1, **tokens: int) -> None:
    """Raises ValueError for a length that no request can have, by its key."""
    for key, n in tokens.items():
        if not least <= n <= MOST_TOKENS:
            raise ValueError(f"{key} must be {least} to {MOST_TOKENS:,} tokens, not {n}")
