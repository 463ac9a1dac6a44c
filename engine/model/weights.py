"""Weights of a decoder: from a folder in Hugging Face layout, or random and seeded."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.model.decoder_config import DecoderConfig, ModelError
from engine.model.hf_tokenizer import read_json
from engine.model.tensor_file import Entry, StoredTensor, each_tensor, read_header

if TYPE_CHECKING:
    import torch

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_CHUNK = 1 << 22
_MENTIONED = 5
"""How many missing or wrong tensors an error lists before it only counts."""


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model needs, under Hugging Face's names, as ``[out, in]``."""
    c = config
    q, kv = c.heads * c.head_size, c.kv_heads * c.head_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocabulary, c.hidden)}
    for i in range(c.layers):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (c.hidden,),
            "self_attn.q_proj.weight": (q, c.hidden),
            "self_attn.k_proj.weight": (kv, c.hidden),
            "self_attn.v_proj.weight": (kv, c.hidden),
            "self_attn.o_proj.weight": (c.hidden, q),
            "post_attention_layernorm.weight": (c.hidden,),
            "mlp.gate_proj.weight": (c.intermediate, c.hidden),
            "mlp.up_proj.weight": (c.intermediate, c.hidden),
            "mlp.down_proj.weight": (c.hidden, c.intermediate),
        }
        if c.qkv_bias:
            sizes = {"q": q, "k": kv, "v": kv}
            layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
        if c.qk_norm:
            layer |= {f"self_attn.{name}_norm.weight": (c.head_size,) for name in "qk"}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (c.hidden,)
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocabulary, c.hidden)
    return shapes


def check_weights(folder: Path, config: DecoderConfig) -> None:
    """See whether the weight files are whole and hold what ``config`` promises, reading their headers only.
    Raises ModelError naming every file and tensor at fault."""
    found: dict[str, Entry] = {}
    try:
        for path in weight_files(folder):
            found |= read_header(path)
    except (ValueError, OSError) as error:
        raise _model_error(error) from error
    check_shapes(folder, config, {name: entry.shape for name, entry in found.items()})


def load_tensors(folder: Path, config: DecoderConfig) -> tuple[dict[str, torch.Tensor], str]:
    """All tensors of the model, as stored, and the ``weights_digest`` of what was read. Raises ModelError
    naming every file and tensor at fault."""
    check_weights(folder, config)
    expected = expected_shapes(config)
    tensors: dict[str, torch.Tensor] = {}
    hashed = _new_digest()
    try:
        for path in weight_files(folder):
            hashed.update(path.stat().st_size.to_bytes(8, "little"))
            for name, stored in each_tensor(path, hashed):
                if name in expected:
                    tensors[name] = as_tensor(stored)
    except (ValueError, OSError) as error:
        raise _model_error(error) from error
    check_shapes(folder, config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return tensors, hashed.hexdigest()


def as_tensor(stored: StoredTensor) -> torch.Tensor:
    """The tensor over the same memory."""
    import torch

    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    return torch.frombuffer(stored.data, dtype=dtypes[stored.dtype]).view(stored.shape)


def check_shapes(folder: Path, config: DecoderConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    """Compare what the files hold with what ``config.json`` promises. Raises ModelError."""
    expected = expected_shapes(config)
    missing = [f"{folder}: tensor {name} is missing" for name in expected if name not in found]
    wrong = [
        f"{folder}: tensor {name} has shape {list(found[name])}, config.json makes it {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    # A tied model may store its output projection too; old files keep RoPE's frequencies.
    unknown = [
        f"{folder}: tensor {name} has no place in this model"
        for name in found
        if name not in expected and name != "lm_head.weight" and not name.endswith("rotary_emb.inv_freq")
    ]
    if missing or wrong or unknown:
        raise ModelError(_shortened(missing) + _shortened(wrong) + _shortened(unknown))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, sharded or not. Raises ModelError if there are none."""
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not (folder / _INDEX).is_file():
        raise ModelError([f"{folder}: neither {_SINGLE} nor {_INDEX}; this engine reads safetensors only"])
    try:
        index = read_json(folder / _INDEX).get("weight_map")
    except ValueError as error:
        raise ModelError([str(error)]) from None
    if not isinstance(index, dict) or not index:
        raise ModelError([f"{folder / _INDEX}: weight_map is missing or empty"])
    if wrong := [name for name in index.values() if not isinstance(name, str)]:
        raise ModelError([f"{folder / _INDEX}: weight_map names {wrong[0]!r}, which is no file's name"])
    files = [folder / name for name in sorted(set(index.values()))]
    missing = [f"{path}: missing, though {_INDEX} names it" for path in files if not path.is_file()]
    if missing:
        raise ModelError(missing)
    return files


def weights_digest(folder: Path) -> str:
    """blake2b-128 over the weight files, in hex; remembered while no file's size or time changes. Raises
    ModelError."""
    try:
        stats = [(path, path.stat()) for path in weight_files(folder)]
        return _digest(tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats))
    except OSError as error:
        raise _model_error(error) from error


@functools.lru_cache(maxsize=8)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = _new_digest()
    for path, size, _ in files:
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _model_error(error: Exception) -> ModelError:
    return error if isinstance(error, ModelError) else ModelError([str(error)])


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def random_tensors(config: DecoderConfig, seed: int) -> dict[str, torch.Tensor]:
    """Random weights in fp32, the same for the same seed.

    Scaled so that activations stay near 1 and logits are spread widely: greedy choices are then clear.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            tensors[name] = torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
        else:
            scale = 1.0 if "embed_tokens" in name else 1.0 / math.sqrt(shape[1])
            tensors[name] = torch.randn(shape, generator=generator) * scale
    return tensors


def random_digest(config: DecoderConfig, seed: int) -> str:
    """Stands for ``weights_digest`` of random weights, without making them."""
    return hashlib.blake2b(f"random:1:{config}:{seed}".encode(), digest_size=16).hexdigest()


def _shortened(problems: list[str]) -> list[str]:
    more = len(problems) - _MENTIONED
    return problems[:_MENTIONED] + ([f".. and {more} more of this kind"] if more > 0 else [])
