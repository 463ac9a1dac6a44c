"""What attribution may look at: one request as its sender saw it, without its text (ATTRIBUTION 2).

Tokens are kept as salted hashes of (position, token id). Two prompts share exactly as many leading
tokens as their hash arrays share leading elements; nothing else can be read off without the salt,
which is drawn for each run and thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


def token_hashes(ids: NDArray[np.uint32] | list[int], salt: int, first: int = 0) -> Hashes:
    """splitmix64 of (salt, position, id) for tokens at positions first, first+1, .. (shape [n])."""
    tokens = np.asarray(ids, dtype=np.uint64)
    position = np.arange(first, first + len(tokens), dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(salt) ^ (position * np.uint64(0x9E3779B97F4A7C15)) ^ (tokens << np.uint64(32))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Hashes = z ^ (z >> np.uint64(31))
    return result


def shared_prefix(a: Hashes, b: Hashes) -> int:
    """Number of equal leading elements."""
    n = min(len(a), len(b))
    differing = np.flatnonzero(a[:n] != b[:n])
    return int(differing[0]) if len(differing) else n


@dataclass(slots=True)
class Component:
    """A part of a rendered prompt. ``start``/``tok`` are its token span; what lies between components
    belongs to the template and is counted with the component before it (or the first)."""

    path: str
    kind: str
    """``tool``, ``system`` or ``message``."""
    start: int
    tok: int
    role: str | None = None
    hash: str = ""
    canon_hash: str = ""
    mask_hash: str = ""
    text: str | None = None
    """Only with ``--keep-text``: tells a dropped field or whitespace from any other edit."""
    media: str | None = None
    """Kind of an embedded medium, such as ``image``."""
    cache_ttl: str | None = None
    """A cache marker at the end of this component, with its life."""


@dataclass(slots=True)
class Observed:
    """One request of the log, in the words of ATTRIBUTION 2. Times in s, monotonic; None = not known."""

    id: str
    session: str
    ts_start: float
    ts_first_token: float | None
    ts_end: float | None
    components: list[Component]
    prompt_total: int | None
    cache_read: int | None
    hashes: Hashes | None = None
    """Of all prompt tokens."""
    output_hashes: Hashes | None = None
    """Of the output tokens, at the positions that follow the prompt."""
    output: Component | None = None
    """The answer as a component, as it would be sent back; ``start`` is the prompt's length."""
    branch: str = "0"
    declared_parent: str | None = None
    retry_of: str | None = None
    provider: str = "headrace"
    model: str = ""
    upstream: str | None = None
    workspace: str = "default"
    endpoint: str | None = None
    adapter: str | None = None
    service_tier: str | None = None
    cache_key: str | None = None
    retention: str | None = None
    """Name of the life that was asked for; None = the policy's first."""
    params: dict[str, str] = field(default_factory=dict)
    app_events: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    status: str = "completed"
    class_: str = "default"
