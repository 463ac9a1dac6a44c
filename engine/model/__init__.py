"""Models: what a name stands for, its weights, its tokenizer, and the network itself.

What the rest of the engine calls is here and imports no torch; ``load_runner`` does when it runs.
"""

from engine.model.decoder_config import ModelError
from engine.model.loader import (
    fingerprint,
    identity,
    kv_bytes_per_token,
    load_runner,
    load_tokenizer,
    max_positions,
    read_adapter,
    resolve,
)
from engine.model.memory import Budget, admit_adapter, budget, check, short_of, with_kv_blocks
from engine.model.tokenizer import Tokenizer

__all__ = [
    "Budget",
    "ModelError",
    "Tokenizer",
    "admit_adapter",
    "budget",
    "check",
    "fingerprint",
    "identity",
    "kv_bytes_per_token",
    "load_runner",
    "load_tokenizer",
    "max_positions",
    "read_adapter",
    "resolve",
    "short_of",
    "with_kv_blocks",
]
