"""A LoRA adapter as the peft library saves it: read, checked and identified (ENGINE E39). Needs no torch.

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors``. For each adapted projection W
there are ``lora_A`` [rank, in] and ``lora_B`` [out, rank]; the model then computes
``W x + scaling * B A x`` with ``scaling = alpha / rank``, or ``alpha / sqrt(rank)`` with ``use_rslora``
(Hu et al. 2021; Kalajdzievski 2023).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.decoder_config import ModelError
from engine.model.hf_tokenizer import read_json
from engine.model.tensor_file import StoredTensor, read_tensors

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
TARGETS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
"""Projections that may be adapted, and the part of a layer that each belongs to."""
PRODUCTS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The model's products and the projections that each is made of, from the first output on."""
_MODULE = re.compile(rf"model\.layers\.(\d+)\.(?:self_attn|mlp)\.({'|'.join(TARGETS)})")
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_MENTIONED = 5
_MOST_ALPHA = 1e9
"""Far above any that means something, far below what overflows a product."""

_MUST_BE: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}
"""What this engine serves of each setting. KaSA and other initialisations (pissa, olora, corda, loftq ..)
also change the weights of the model itself, which the folder does not hold."""


@dataclass(frozen=True, slots=True)
class Module:
    """One adapted projection: ``scaling * b @ a @ x`` is added to its output."""

    layer: int
    target: str
    scaling: float
    a: StoredTensor
    b: StoredTensor

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """``digest`` is that of the content: equal folders have it, wherever they lie and however their files
    are laid out. ``rank`` is the largest of any module."""

    digest: str
    rank: int
    targets: tuple[str, ...]
    modules: tuple[Module, ...]

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Numbers that it takes when it is resident (engine.model.lora): A of each module, and for all ranks
        of a product its whole height in B."""
        tall = _tall(shapes)
        return sum(module.rank * (module.a.shape[1] + tall[module.target]) for module in self.modules)


def most_weights(shapes: Mapping[str, tuple[int, ...]], rank: int) -> int:
    """Numbers in the largest adapter of this rank that fits the model: every projection of every layer."""
    tall = _tall(shapes)
    names = [name.rsplit(".", 2)[-2] for name in shapes if _MODULE.match(name) and name.endswith(".weight")]
    wide = {target: shapes[_first(target)][1] for target in TARGETS}
    return sum(rank * (wide[target] + tall[target]) for target in names)


def _tall(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """By projection: outputs of the whole product that it is a part of."""
    heights = {target: shapes[_first(target)][0] for target in TARGETS}
    return {target: sum(heights[each] for each in of) for of in PRODUCTS.values() for target in of}


def _first(target: str) -> str:
    return f"model.layers.0.{TARGETS[target]}.{target}.weight"


def read_adapter(folder: Path, shapes: Mapping[str, tuple[int, ...]] | None, max_rank: int) -> PeftAdapter:
    """Read and check a PEFT folder. ``shapes`` are those of the model's weights [out, in] by name (None:
    a model without weights, any shape fits). Raises ModelError naming every file and finding at fault."""
    if not folder.is_dir():
        raise ModelError([f"{folder}: no such folder"])
    try:
        raw = read_json(folder / CONFIG)
        tensors = read_tensors(folder / WEIGHTS)
    except (ValueError, OSError) as error:
        raise ModelError([str(error)]) from error
    _raise(folder / CONFIG, [*_unsupported(raw), *_wrong_numbers(raw)])
    pairs, strange = _pairs(tensors)
    _raise(folder / WEIGHTS, strange)
    if not pairs:
        raise ModelError([f"{folder / WEIGHTS}: holds no LoRA weights"])
    _raise(folder / WEIGHTS, list(_misfits(raw, pairs, shapes, max_rank)))
    if shapes is not None:
        _raise(folder / WEIGHTS, list(_absent(raw, pairs, shapes)))
    broken = [name for name, tensor in tensors.items() if not tensor.finite]
    _raise(folder / WEIGHTS, [f"tensor {name} holds values that are no numbers" for name in broken])
    modules = tuple(
        Module(_layer(name), _target(name), _scaling(raw, name), a, b)
        for name, (a, b) in sorted(pairs.items(), key=lambda pair: (_layer(pair[0]), _target(pair[0])))
    )
    targets = tuple(target for target in TARGETS if any(m.target == target for m in modules))
    return PeftAdapter(_digest(modules), max(m.rank for m in modules), targets, modules)


def _raise(path: Path, problems: list[str]) -> None:
    if problems:
        more = len(problems) - _MENTIONED
        rest = [f"{path}: .. and {more} more"] if more > 0 else []
        raise ModelError([f"{path}: {problem}" for problem in problems[:_MENTIONED]] + rest)


# -- adapter_config.json ----------------------------------------------------------------------------


def _unsupported(raw: Mapping[str, Any]) -> list[str]:
    """What the file asks for and this engine does not have."""
    problems = []
    for key, served in _MUST_BE.items():
        value = raw.get(key, served[0])
        if not any(value == good and type(value) is type(good) for good in served):
            problems.append(f"{key} is {value!r}, this engine serves {served[0]!r}")
    problems += [  # use_dora, use_qalora and whatever variant comes next
        f"{key} is true, this engine serves plain LoRA"
        for key, value in raw.items()
        if key.startswith("use_") and key != "use_rslora" and value
    ]
    return problems


def _wrong_numbers(raw: Mapping[str, Any]) -> Iterator[str]:
    for key, table, fits, kind in (
        ("r", "rank_pattern", _is_rank, "a whole number of at least 1"),
        ("lora_alpha", "alpha_pattern", _is_number, f"a number of at most {_MOST_ALPHA:,.0f}"),
    ):
        if not fits(raw.get(key)):
            yield f"{key} is {repr(raw.get(key))[:80]}, not {kind}"
        pattern = raw.get(table) or {}
        if not isinstance(pattern, dict) or not all(fits(value) for value in pattern.values()):
            yield f"{table} is {repr(pattern)[:200]}, not a table of which each value is {kind}"
            continue
        yield from (
            f"{table} {each!r} is no regular expression" for each in pattern if not _compiles(_ending(each))
        )
    for key in ("target_modules", "exclude_modules"):
        value = raw.get(key)
        names = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (names or value is None or (isinstance(value, str) and _compiles(value))):
            yield f"{key} is {value!r}, neither names nor a regular expression"
    layers = raw.get("layers_to_transform")
    if not (layers is None or type(layers) is int or isinstance(layers, list)):
        yield f"layers_to_transform is {layers!r}, neither a layer nor a list of them"


def _is_rank(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST_ALPHA


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _ending(key: str) -> str:
    """What a key of a pattern table matches: a module's name or its ending (peft's get_pattern_key)."""
    return rf"(.*\.)?({key})$"


def _setting(raw: Mapping[str, Any], of: str, pattern: str, name: str) -> Any:
    """``raw[of]``, unless the table ``pattern`` has a key for this module."""
    for key, value in (raw.get(pattern) or {}).items():
        if re.match(_ending(key), name):
            return value
    return raw[of]


def _scaling(raw: Mapping[str, Any], name: str) -> float:
    rank, alpha = _setting(raw, "r", "rank_pattern", name), _setting(raw, "lora_alpha", "alpha_pattern", name)
    return float(alpha / math.sqrt(rank) if raw.get("use_rslora") else alpha / rank)


def _chosen(raw: Mapping[str, Any], name: str) -> bool:
    """Whether the file says that this module is adapted."""
    layers = raw.get("layers_to_transform")
    if layers not in (None, []) and _layer(name) not in (layers if isinstance(layers, list) else [layers]):
        return False
    wanted, left_out = raw.get("target_modules"), raw.get("exclude_modules")
    return _matches(wanted, name) and not (left_out and _matches(left_out, name))


def _matches(names: Any, name: str) -> bool:
    if isinstance(names, str):
        return names == "all-linear" or re.fullmatch(names, name) is not None
    return any(name == each or name.endswith(f".{each}") for each in names or [])


# -- adapter_model.safetensors ----------------------------------------------------------------------

_Pairs = dict[str, tuple[StoredTensor, StoredTensor]]


def _pairs(tensors: Mapping[str, StoredTensor]) -> tuple[_Pairs, list[str]]:
    """lora_A and lora_B of each module, by the module's name in the model; and what is no such pair."""
    halves: dict[str, dict[str, StoredTensor]] = {}
    strange = []
    for name, tensor in tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None or _MODULE.fullmatch(found[1]) is None:
            strange.append(f"tensor {name} has no place: LoRA is served for {', '.join(TARGETS)}")
        else:
            halves.setdefault(found[1], {})[found[2]] = tensor
    strange += [
        f"{name} has no lora_{'B' if 'A' in half else 'A'}" for name, half in halves.items() if len(half) < 2
    ]
    return {name: (half["A"], half["B"]) for name, half in halves.items() if len(half) == 2}, strange


def _misfits(
    raw: Mapping[str, Any], pairs: _Pairs, shapes: Mapping[str, tuple[int, ...]] | None, max_rank: int
) -> Iterator[str]:
    for name, (a, b) in pairs.items():
        rank = _setting(raw, "r", "rank_pattern", name)
        if rank > max_rank:
            yield f"{name} has rank {rank}, max_lora_rank is {max_rank}"
        elif shapes is None:
            if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != rank or b.shape[1] != rank:
                yield f"{name} is {list(b.shape)} times {list(a.shape)}, not of rank {rank}"
        elif f"{name}.weight" not in shapes:
            yield f"{name} is no module of this model"
        else:
            out, into = shapes[f"{name}.weight"]
            if a.shape != (rank, into) or b.shape != (out, rank):
                yield (
                    f"{name} is {list(b.shape)} times {list(a.shape)}, "
                    f"rank {rank} of this model makes it {[out, rank]} times {[rank, into]}"
                )


def _absent(raw: Mapping[str, Any], pairs: _Pairs, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """A module that one of both files speaks of and the other does not: a torn or mixed-up folder."""
    if raw.get("target_modules") is None:  # peft's own choice for the model's type
        return
    for weight in shapes:
        name = weight.removesuffix(".weight")
        if _MODULE.fullmatch(name) is not None and _chosen(raw, name) != (name in pairs):
            where = "in this file, but not" if name in pairs else "missing here, but"
            yield f"{name} is {where} among the target modules of {CONFIG}"


def _layer(name: str) -> int:
    found = _MODULE.fullmatch(name)
    assert found is not None
    return int(found[1])


def _target(name: str) -> str:
    return name.rpartition(".")[2]


def _digest(modules: tuple[Module, ...]) -> str:
    """blake2b-128 in hex over rank, scaling, target and tensors of every module."""
    hashed = hashlib.blake2b(b"lora 1", digest_size=16)
    for module in modules:
        hashed.update(f"|{module.layer} {module.target} {module.scaling.hex()}".encode())
        for tensor in (module.a, module.b):
            hashed.update(f"|{tensor.dtype} {tensor.shape}".encode())
            hashed.update(tensor.data)
    return hashed.hexdigest()
