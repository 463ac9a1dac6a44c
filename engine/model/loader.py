"""From a model's name to its runner, tokenizer and identity.

A name is ``simulated``, ``tiny``, a model or hub id pulled by ``bench model pull``, or a folder in Hugging
Face layout. torch is imported only by ``load_runner``, and not for ``simulated``: the gateway never needs it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from engine.config import EngineConfig
from engine.kv.disk import DiskRefused, DiskStore
from engine.model.adapter import AdapterFacts, adapter_facts
from engine.model.byte_tokenizer import ByteTokenizer
from engine.model.config_json import read_config
from engine.model.decoder_config import TINY, DecoderConfig, ModelError
from engine.model.grammar import Matchers, Schemas
from engine.model.hf_tokenizer import HfTokenizer
from engine.model.hub import is_hub_id
from engine.model.local import local_folder
from engine.model.pull import MODELS, is_pulled, model_folder
from engine.model.tokenizer import Tokenizer
from engine.model.weights import check_weights, load_tensors, random_digest, random_tensors, weights_digest
from engine.model.words import WordsTokenizer
from engine.runner.base import Runner

Builtin = Literal["simulated", "tiny"]

SIMULATED_POSITIONS = 1 << 20
BYTES = {"fp32": 4, "bf16": 2}
"""Of one number, by precision."""


def resolve(name: str) -> Path | Builtin:
    """What a model's name stands for. Raises ModelError that says what there is instead."""
    if name == "simulated":
        return "simulated"
    if name == "tiny":
        return "tiny"
    folder = local_folder(name)
    if name not in MODELS and folder.is_dir():
        return folder
    if name in MODELS or is_hub_id(name):
        folder = model_folder(name)
        if not is_pulled(folder):
            raise ModelError([f"model {name!r} is not pulled yet: run bench model pull {name}"])
        return folder
    if name.startswith(("/", ".", "~")):
        raise ModelError([f"{folder}: no such folder"])
    known = ", ".join(f"{model} ({_state(model)})" for model in sorted(MODELS))
    raise ModelError(
        [f"model {name!r} is no folder, no hub id (org/name) and no known name: simulated, tiny, {known}"]
    )


def check(config: EngineConfig) -> None:
    """See, without loading anything, whether this machine can serve the model. Raises ModelError."""
    model, shape = resolve(config.model), shape_of(config)
    if shape is not None and isinstance(model, Path):
        check_weights(model, shape)
    if shape is not None and importlib.util.find_spec("torch") is None:
        raise ModelError([f"model {config.model!r} needs torch: pip install 'headrace[engine]'"])
    for folder in config.adapters.values():
        read_adapter(config, folder)


def read_adapter(config: EngineConfig, folder: str) -> AdapterFacts:
    """A LoRA adapter for this model, read and checked (ENGINE E39). Raises ModelError."""
    return adapter_facts(folder, shape_of(config), config.max_lora_rank)


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """The model's tokenizer. Raises ModelError."""
    model = resolve(config.model)
    if model == "simulated":
        return WordsTokenizer()
    if model == "tiny":
        return ByteTokenizer()
    shape = read_config(model)
    try:
        return HfTokenizer(model, shape.vocabulary)
    except (ValueError, OSError) as error:
        raise ModelError([str(error)]) from error


def load_runner(config: EngineConfig, worker: int = 0, expected: str | None = None) -> Runner:
    """A runner with its weights in memory, before ``allocate``. Raises ModelError.

    ``expected`` is the ``fingerprint`` of the identity under which its K/V will be known: a folder that was
    changed since then is refused, because what others cached would not fit it (ENGINE E7, E51).
    """
    model = resolve(config.model)
    if model == "simulated":
        from engine.runner.simulated import SimulatedRunner

        simulated = SimulatedRunner(config.cost, config.seed, worker, tiers=config.cache.tiers)
        simulated.adapter_digest = lambda folder: read_adapter(config, folder).digest
        return simulated
    try:
        import torch
    except ImportError as error:
        raise ModelError([f"model {config.model!r} needs torch: pip install 'headrace[engine]'"]) from error
    from engine.model.decoder import Decoder
    from engine.runner.torch_runner import TorchRunner

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[config.dtype]
    tokenizer = load_tokenizer(config)
    if model == "tiny":
        shape = TINY
        tensors, digest = random_tensors(shape, config.seed), random_digest(shape, config.seed)
    else:
        shape = read_config(model)
        tensors, digest = load_tensors(model, shape)
    if expected not in (None, fingerprint(_identity(config, tokenizer, str(shape), digest))):
        raise ModelError(
            [f"{model}: not what it was when the engine started (weights {digest} now): restart the engine"]
        )
    limited = replace(shape, max_positions=max_positions(config))
    decoder, matchers = Decoder(limited, tensors, dtype), Matchers(Schemas(tokenizer))
    disk = _open_disk(config, worker, digest)
    return TorchRunner(decoder, tokenizer.eos_ids, config.threads, matchers, disk)


def _open_disk(config: EngineConfig, worker: int, weights: str) -> DiskStore | None:
    """A worker's own folder in that of the disk tier (ENGINE E45). Raises ModelError if it is not usable."""
    disk = config.cache.tiers.disk
    if disk is None:
        return None
    try:
        folder = local_folder(disk.path) / f"worker-{worker}"
        return DiskStore(folder, f"{config.model} {weights}", time.monotonic)
    except DiskRefused as error:
        raise ModelError([f"cache.tiers.disk.path: {error}"]) from error


def identity(config: EngineConfig) -> dict[str, str]:
    """What makes K/V of this model what they are, as keywords of ``kv.blocks.namespace_root`` (E7).
    ``positions`` holds the whole shape: RoPE and windows, and what else of config.json K/V depend on.
    Raises ModelError."""
    model, shape = resolve(config.model), shape_of(config)
    if shape is None:  # its text depends on nothing but the tokens
        return _identity(config, load_tokenizer(config), "none", "simulated")
    weights = weights_digest(model) if isinstance(model, Path) else random_digest(shape, config.seed)
    return _identity(config, load_tokenizer(config), str(shape), weights)


def _identity(config: EngineConfig, tokenizer: Tokenizer, positions: str, weights: str) -> dict[str, str]:
    return {
        "model": config.model,
        "weights": weights,
        "tokenizer": tokenizer.digest,
        "positions": positions,
        "precision": f"weights {config.dtype}, kv {config.dtype}",
    }


def fingerprint(identity: Mapping[str, str]) -> str:
    """An identity in 32 hex digits."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def max_positions(config: EngineConfig) -> int:
    """Longest sequence in tokens: the model's own limit, or ``max_model_len`` if that is less."""
    shape = shape_of(config)
    own = SIMULATED_POSITIONS if shape is None else shape.max_positions
    return own if config.max_model_len is None else min(own, config.max_model_len)


def kv_bytes_per_token(config: EngineConfig) -> int:
    """K and V of one position in all layers; 0 for the simulated model, which keeps none."""
    shape = shape_of(config)
    return 0 if shape is None else shape.kv_bytes_per_token(BYTES[config.dtype])


def shape_of(config: EngineConfig) -> DecoderConfig | None:
    """The model's; None for the simulated one. Raises ModelError."""
    model = resolve(config.model)
    if model == "simulated":
        return None
    return TINY if model == "tiny" else read_config(model)


def _state(name: str) -> str:
    return "pulled" if is_pulled(model_folder(name)) else f"not pulled yet: bench model pull {name}"
