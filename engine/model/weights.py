"""Weights of a Llama-family model: from a folder in Hugging Face layout, or random and seeded."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.model.hf_tokenizer import read_json
from engine.model.llama_config import LlamaConfig, ModelError

if TYPE_CHECKING:
    import torch

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_CHUNK = 1 << 22
_MENTIONED = 5
"""How many missing or wrong tensors an error lists before it only counts."""


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model needs, under Hugging Face's names, as ``[out, in]``."""
    c = config
    q, kv = c.heads * c.head_size, c.kv_heads * c.head_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (c.vocabulary, c.hidden)}
    for i in range(c.layers):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (c.hidden,),
            "self_attn.q_proj": (q, c.hidden),
            "self_attn.k_proj": (kv, c.hidden),
            "self_attn.v_proj": (kv, c.hidden),
            "self_attn.o_proj": (c.hidden, q),
            "post_attention_layernorm": (c.hidden,),
            "mlp.gate_proj": (c.intermediate, c.hidden),
            "mlp.up_proj": (c.intermediate, c.hidden),
            "mlp.down_proj": (c.hidden, c.intermediate),
        }
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm"] = (c.hidden,)
    if not c.tied:
        shapes["lm_head"] = (c.vocabulary, c.hidden)
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def load_tensors(folder: Path, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """All tensors of the model, as stored. Raises ModelError naming every file and tensor at fault."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Any] = {}
    found: dict[str, tuple[int, ...]] = {}
    with ExitStack() as stack:
        handles = {}
        for path in weight_files(folder):
            try:
                handle = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError([f"{path}: not a safetensors file: {error}"]) from error
            for name in handle.keys():  # noqa: SIM118 - not a dict
                handles[name] = handle
                found[name] = tuple(handle.get_slice(name).get_shape())
        check_shapes(folder, config, found)
        for name in expected_shapes(config):
            tensors[name] = handles[name].get_tensor(name)
    not_floating = [
        f"{folder}: {name} is {t.dtype}" for name, t in tensors.items() if not t.is_floating_point()
    ]
    if not_floating:
        raise ModelError(_shortened(not_floating))
    return tensors


def check_shapes(folder: Path, config: LlamaConfig, found: Mapping[str, tuple[int, ...]]) -> None:
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
    files = [folder / str(name) for name in sorted(set(index.values()))]
    missing = [f"{path}: missing, though {_INDEX} names it" for path in files if not path.is_file()]
    if missing:
        raise ModelError(missing)
    return files


def weights_digest(folder: Path) -> str:
    """blake2b-128 over the weight files, in hex; remembered while no file's size or time changes."""
    stats = [(path, path.stat()) for path in weight_files(folder)]
    return _digest(tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats))


@functools.lru_cache(maxsize=8)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path, size, _ in files:
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def random_tensors(config: LlamaConfig, seed: int) -> dict[str, torch.Tensor]:
    """Random weights in fp32, the same for the same seed.

    Scaled so that activations stay near 1 and logits are spread widely: greedy choices are then clear.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape)
        else:
            scale = 1.0 if "embed_tokens" in name else 1.0 / math.sqrt(shape[1])
            tensors[name] = torch.randn(shape, generator=generator) * scale
    return tensors


def random_digest(config: LlamaConfig, seed: int) -> str:
    """Stands for ``weights_digest`` of random weights, without making them."""
    return hashlib.blake2b(f"random:1:{config}:{seed}".encode(), digest_size=16).hexdigest()


def _shortened(problems: list[str]) -> list[str]:
    more = len(problems) - _MENTIONED
    return problems[:_MENTIONED] + ([f".. and {more} more of this kind"] if more > 0 else [])
