"""What the gateway must know of a LoRA adapter (ENGINE E39). Needs no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from engine.model.decoder_config import DecoderConfig
from engine.model.local import local_folder
from engine.model.peft_folder import read_adapter
from engine.model.weights import expected_shapes


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """``folder`` is absolute; ``rank`` is the largest of any projection that it adapts; ``weights`` numbers
    are in memory while it is resident."""

    digest: str
    folder: str
    rank: int
    targets: tuple[str, ...]
    weights: int


def adapter_facts(folder: str, shape: DecoderConfig | None, max_rank: int) -> AdapterFacts:
    """Read a PEFT folder and check it against the model. Raises ModelError.

    The simulated model (``shape`` None) has no weights that an adapter could fit: it takes a folder of any
    shape, and where there is none it takes its name for its content.
    """
    path = local_folder(folder)
    if shape is None and not path.exists():
        digest = hashlib.blake2b(f"simulated:{path}".encode(), digest_size=16).hexdigest()
        return AdapterFacts(digest, str(path), 0, (), 0)
    shapes = None if shape is None else expected_shapes(shape)
    adapter = read_adapter(path, shapes, max_rank)
    weights = 0 if shapes is None else adapter.weights(shapes)
    return AdapterFacts(adapter.digest, str(path), adapter.rank, adapter.targets, weights)
