"""Named random streams of one seed (MEASUREMENT C15).

Every draw of a run comes from a stream named after what it decides, so that a new draw somewhere does
not shift the numbers of everything after it.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator called ``names`` of ``seed``: equal arguments give equal draws."""
    name = "\x1f".join(str(part) for part in names)
    digest = blake2b(name.encode(), digest_size=16).digest()
    words = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))
