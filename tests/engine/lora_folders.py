"""Writes PEFT folders: random LoRA weights, byte for byte as the library would save them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.model.decoder_config import TINY, DecoderConfig
from engine.model.peft_folder import CONFIG, TARGETS, WEIGHTS
from engine.model.weights import expected_shapes

ALL = tuple(TARGETS)


def modules_of(
    config: DecoderConfig, targets: Iterable[str] = ALL, layers: Iterable[int] | None = None
) -> dict[str, tuple[int, ...]]:
    """Name -> [out, in] of the projections that an adapter with these targets adapts."""
    wanted, of = set(targets), set(range(config.layers) if layers is None else layers)
    shapes = {name.removesuffix(".weight"): shape for name, shape in expected_shapes(config).items()}
    return {
        name: shape
        for name, shape in shapes.items()
        if name.rpartition(".")[2] in wanted and int(name.split(".")[2]) in of
    }


def tensors_of(
    modules: Mapping[str, tuple[int, ...]],
    rank: int = 4,
    seed: int = 0,
    scale: float = 1.0,
    ranks: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """lora_A and lora_B of each module, fp32; ``ranks`` by target where they differ."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, (out, into) in modules.items():
        r = (ranks or {}).get(name.rpartition(".")[2], rank)
        a, b = rng.standard_normal((r, into)), rng.standard_normal((out, r))
        prefix = f"base_model.model.{name}"
        tensors[f"{prefix}.lora_A.weight"] = (a * scale / into**0.5).astype(np.float32)
        tensors[f"{prefix}.lora_B.weight"] = (b * scale / r**0.5).astype(np.float32)
    return tensors


def settings_of(
    targets: Iterable[str] = ALL, rank: int = 4, alpha: float = 4, **changes: Any
) -> dict[str, Any]:
    """The content of adapter_config.json."""
    plain = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere/else",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "target_modules": list(targets),
        "bias": "none",
        "modules_to_save": None,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "use_dora": False,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "layers_to_transform": None,
        "exclude_modules": None,
    }
    return plain | changes


def save_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file, tensors in the order given."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, tensor in tensors.items():
        dtype = {"float32": "F32", "float16": "F16", "float64": "F64"}[str(tensor.dtype)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write(folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(settings))
    save_tensors(folder / WEIGHTS, tensors)
    return folder


def adapter(
    folder: Path,
    seed: int = 0,
    config: DecoderConfig = TINY,
    targets: Iterable[str] = ALL,
    rank: int = 4,
    alpha: float = 4,
    scale: float = 1.0,
    **changes: Any,
) -> Path:
    """A folder with random weights for a model."""
    targets = tuple(targets)
    tensors = tensors_of(modules_of(config, targets), rank, seed, scale)
    return write(folder, settings_of(targets, rank, alpha, **changes), tensors)
