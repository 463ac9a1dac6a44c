"""From a model's name to its runner, tokenizer and identity.

A name is ``simulated``, ``tiny``, a model pulled by ``bench model pull``, or a folder in Hugging Face
layout. torch is imported only by ``load_runner``, and not for ``simulated``: the gateway never needs it.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from engine.config import EngineConfig
from engine.model.byte_tokenizer import ByteTokenizer
from engine.model.hf_tokenizer import HfTokenizer
from engine.model.llama_config import TINY, LlamaConfig, ModelError, read_config
from engine.model.pull import MODELS, is_pulled, model_folder
from engine.model.tokenizer import Tokenizer
from engine.model.weights import load_tensors, random_digest, random_tensors, weights_digest
from engine.model.words import WordsTokenizer
from engine.runner.base import Runner

Builtin = Literal["simulated", "tiny"]

SIMULATED_POSITIONS = 1 << 20
SIMULATED_BLOCKS = 4096
_BYTES = {"fp32": 4, "bf16": 2}
_CPU_SHARE = 0.5
"""Share of this machine's memory that all workers together take unless told otherwise (E10)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How a worker's memory is cut up, in bytes (ENGINE E10). ``kv`` includes the null block."""

    weights: int
    kv: int
    blocks: int


def resolve(name: str) -> Path | Builtin:
    """What a model's name stands for. Raises ModelError that says what there is instead."""
    if name == "simulated":
        return "simulated"
    if name == "tiny":
        return "tiny"
    if name in MODELS:
        folder = model_folder(name)
        if not is_pulled(folder):
            raise ModelError([f"model {name!r} is not pulled yet: run bench model pull {name}"])
        return folder
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    known = ", ".join(f"{model} ({_state(model)})" for model in sorted(MODELS))
    raise ModelError([f"model {name!r} is no folder and no known name: simulated, tiny, {known}"])


def check(config: EngineConfig) -> None:
    """See, without loading anything, whether this machine can serve the model. Raises ModelError."""
    shape = _shape(config)
    if shape is not None and importlib.util.find_spec("torch") is None:
        raise ModelError([f"model {config.model!r} needs torch: pip install 'headrace[engine]'"])


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """The model's tokenizer. Raises ModelError."""
    model = resolve(config.model)
    if model == "simulated":
        return WordsTokenizer()
    if model == "tiny":
        return ByteTokenizer()
    try:
        return HfTokenizer(model)
    except ValueError as error:
        raise ModelError([str(error)]) from error


def load_runner(config: EngineConfig, worker: int = 0) -> Runner:
    """A runner with its weights in memory, before ``allocate``. Raises ModelError."""
    model = resolve(config.model)
    if model == "simulated":
        from engine.runner.simulated import SimulatedRunner

        return SimulatedRunner(config.cost, config.seed, worker)
    try:
        import torch
    except ImportError as error:
        raise ModelError([f"model {config.model!r} needs torch: pip install 'headrace[engine]'"]) from error
    from engine.model.llama import Llama
    from engine.runner.torch_runner import TorchRunner

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[config.dtype]
    if model == "tiny":
        llama = Llama(TINY, random_tensors(TINY, config.seed), dtype)
        return TorchRunner(llama, ByteTokenizer.eos_ids, config.threads)
    shape = read_config(model)
    llama = Llama(shape, load_tensors(model, shape), dtype)
    return TorchRunner(llama, load_tokenizer(config).eos_ids, config.threads)


def identity(config: EngineConfig) -> dict[str, str]:
    """What makes K/V of this model what they are, as keywords of ``kv.blocks.namespace_root`` (E7)."""
    model = resolve(config.model)
    tokenizer = load_tokenizer(config)
    shape = _shape(config)
    if shape is None:
        weights, positions = "simulated", "none"  # its text depends on nothing but the tokens
    else:
        weights = weights_digest(model) if isinstance(model, Path) else random_digest(shape, config.seed)
        positions = f"rope:{shape.rope_theta}:{shape.head_size}"
    return {
        "model": config.model,
        "weights": weights,
        "tokenizer": tokenizer.digest,
        "positions": positions,
        "precision": f"weights {config.dtype}, kv {config.dtype}",
    }


def max_positions(config: EngineConfig) -> int:
    """Longest sequence in tokens: the model's own limit, or ``max_model_len`` if that is less."""
    shape = _shape(config)
    own = SIMULATED_POSITIONS if shape is None else shape.max_positions
    return own if config.max_model_len is None else min(own, config.max_model_len)


def kv_bytes_per_token(config: EngineConfig) -> int:
    """K and V of one position in all layers; 0 for the simulated model, which keeps none."""
    shape = _shape(config)
    return 0 if shape is None else shape.kv_bytes_per_token(_BYTES[config.dtype])


def budget(config: EngineConfig) -> Budget:
    """Usable KV blocks of one worker and what they cost. Raises ModelError if not one block fits.

    ``memory.kv_blocks`` as it is; else what ``memory.total`` (by default half of this machine's memory,
    shared by the workers) leaves beside the weights.
    """
    memory = config.memory
    if memory.kv_blocks is not None and memory.kv_blocks < 1:
        raise ModelError([f"memory.kv_blocks is {memory.kv_blocks}: a worker needs at least one KV block"])
    shape = _shape(config)
    if shape is None:
        return Budget(weights=0, kv=0, blocks=memory.kv_blocks or SIMULATED_BLOCKS)
    weights = shape.parameters * _BYTES[config.dtype]
    per_block = memory.block_size * shape.kv_bytes_per_token(_BYTES[config.dtype])
    if memory.kv_blocks is not None:
        blocks = memory.kv_blocks
    else:
        total = (
            memory.total if memory.total is not None else int(_CPU_SHARE * machine_memory() / config.workers)
        )
        blocks = (total - weights) // per_block - 1  # one more is made: the null block
        if blocks < 1:
            raise ModelError(
                [f"memory.total {total / 1e6:.1f} MB holds {weights / 1e6:.1f} MB of weights and no KV block"]
            )
    return Budget(weights=weights, kv=(blocks + 1) * per_block, blocks=blocks)


def machine_memory() -> int:
    """Bytes of memory that this process may use: RAM, or the cgroup's limit if that is less."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [ram]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:  # no cgroup of this version
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def with_kv_blocks(config: EngineConfig) -> EngineConfig:
    """``config`` with ``memory.kv_blocks`` set from its budget. Raises ModelError."""
    return replace(config, memory=replace(config.memory, kv_blocks=budget(config).blocks))


def _shape(config: EngineConfig) -> LlamaConfig | None:
    model = resolve(config.model)
    if model == "simulated":
        return None
    return TINY if model == "tiny" else read_config(model)


def _state(name: str) -> str:
    return "pulled" if is_pulled(model_folder(name)) else f"not pulled yet: bench model pull {name}"
