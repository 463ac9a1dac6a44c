"""From a Hugging Face ``config.json`` to a DecoderConfig, or to why this engine cannot serve it.

Whatever the file asks for and this engine does not compute is refused by its key: a key that changes the
output and is passed over would give wrong text that looks right. Where a key is absent, what transformers
takes for the same architecture counts, or the key is demanded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.model.decoder_config import DecoderConfig, Llama3Scaling, ModelError
from engine.model.hf_tokenizer import read_json

T = TypeVar("T")
Raw = Mapping[str, Any]
Windows = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """What one architecture does differently, before its ``config.json`` has its say."""

    windows: Callable[[Raw, int], Windows]
    """From the file and the number of layers. Raises ModelError."""
    qkv_bias: bool = False
    qk_norm: bool = False
    demanded: tuple[str, ...] = ("num_key_value_heads",)
    """Sizes for which transformers has a number of its own that fits one model alone."""


def read_config(folder: Path) -> DecoderConfig:
    """The config of a Hugging Face folder. Raises ModelError with everything that is wrong."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise ModelError([f"{folder}: no such folder"])
    try:
        return parse_config(read_json(path))
    except ModelError as error:
        raise ModelError([f"{path}: {problem}" for problem in error.problems]) from None
    except ValueError as error:
        raise ModelError([str(error)]) from None


def parse_config(raw: Raw) -> DecoderConfig:
    """The content of a ``config.json``. Raises ModelError with everything that is wrong, by key."""
    problems = _unsupported(raw)
    family = _family(raw)
    if family is None:
        served = ", ".join(FAMILIES)
        problems.insert(0, f"architectures is {raw.get('architectures')}, this engine serves {served}")
        raise ModelError(problems)

    def told(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except ModelError as error:
            problems.extend(error.problems)
            return None

    sizes = told(lambda: _sizes(raw, family))
    eps = told(lambda: _number(raw, "rms_norm_eps", 1e-6))
    theta = told(lambda: _theta(raw))
    scaling = told(lambda: _rope_scaling(raw))
    windows = told(lambda: family.windows(raw, sizes["num_hidden_layers"])) if sizes else None
    if sizes is None or eps is None or theta is None or windows is None or problems:
        raise ModelError(problems)
    return DecoderConfig(
        vocabulary=sizes["vocab_size"],
        hidden=sizes["hidden_size"],
        intermediate=sizes["intermediate_size"],
        layers=sizes["num_hidden_layers"],
        heads=sizes["num_attention_heads"],
        kv_heads=sizes["num_key_value_heads"],
        head_size=sizes["head_dim"],
        max_positions=sizes["max_position_embeddings"],
        rms_eps=eps,
        rope_theta=theta,
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        rope_scaling=scaling,
        windows=windows,
    )


def _family(raw: Raw) -> Family | None:
    named = raw.get("architectures")
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str):
        return FAMILIES.get(named[0])
    return None


def _unsupported(raw: Raw) -> list[str]:
    """What no family here has."""
    problems = []
    if raw.get("hidden_act", "silu") != "silu":
        problems.append(f"hidden_act is {raw['hidden_act']!r}, this engine has 'silu'")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            problems.append(f"{key} is true, this engine has no biases but Qwen2's of q, k and v")
    if raw.get("quantization_config"):
        problems.append("quantization_config is set, this engine reads plain fp32, fp16 or bf16 weights")
    return problems


# --- sizes

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def _sizes(raw: Raw, family: Family) -> dict[str, int]:
    """All sizes, with the usual defaults of the two that may be absent. Raises ModelError."""
    values: dict[str, Any] = {key: raw.get(key) for key in (*_REQUIRED, "num_key_value_heads", "head_dim")}
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    if values["num_key_value_heads"] is None and "num_key_value_heads" not in family.demanded:
        values["num_key_value_heads"] = heads
    if (
        values["head_dim"] is None
        and "head_dim" not in family.demanded
        and _is_size(hidden)
        and _is_size(heads)
    ):
        values["head_dim"] = hidden // heads
    problems = [
        f"{key} is {value!r}, not a positive whole number"
        for key, value in values.items()
        if not _is_size(value)
    ]
    if problems:
        raise ModelError(problems)
    kv_heads, head_dim = values["num_key_value_heads"], values["head_dim"]
    if heads % kv_heads:
        problems.append(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        problems.append(f"head_dim {head_dim} is odd, RoPE turns pairs")
    if problems:
        raise ModelError(problems)
    return values


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _number(values: Raw, key: str, default: float | None) -> float:
    value = default if values.get(key) is None else values[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ModelError([f"{key} is {value!r}, not a positive number"])
    return float(value)


# --- RoPE

_ROPE_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_LLAMA3_KEYS = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}


def _rope(raw: Raw) -> Raw:
    """Newer files keep everything about RoPE in ``rope_parameters``, older ones in ``rope_scaling``."""
    value = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    return value if isinstance(value, dict) else {"rope_type": value}


def _theta(raw: Raw) -> float:
    return _number(_rope(raw), "rope_theta", _number(raw, "rope_theta", 10_000.0))


def _rope_scaling(raw: Raw) -> Llama3Scaling | None:
    """How RoPE's frequencies are scaled. Raises ModelError."""
    old, new, rope = raw.get("rope_scaling"), raw.get("rope_parameters"), _rope(raw)
    if old and new and old != new:
        raise ModelError([f"rope_scaling is {old} and rope_parameters is {new}: one of them must go"])
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ModelError([f"rope scaling is {kind!r}, this engine has 'default' and 'llama3'"])
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1):
        raise ModelError([f"partial_rotary_factor is {partial}, this engine turns whole heads"])
    known = _ROPE_KEYS | (_LLAMA3_KEYS if kind == "llama3" else set())
    if unknown := sorted(set(rope) - known):
        raise ModelError([f"rope scaling {kind!r} has {', '.join(unknown)}, which this engine does not know"])
    if kind == "default":
        return None
    scaling = Llama3Scaling(
        _number(rope, "factor", None),
        _number(rope, "low_freq_factor", None),
        _number(rope, "high_freq_factor", None),
        round(_number(rope, "original_max_position_embeddings", None)),
    )
    if not scaling.low_freq_factor < scaling.high_freq_factor:
        raise ModelError(["rope scaling 'llama3' needs low_freq_factor < high_freq_factor"])
    return scaling


# --- sliding windows

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _no_windows(raw: Raw, layers: int) -> Windows:
    """Llama: a window in its file would be some other architecture's."""
    if raw.get("sliding_window") is not None:
        raise ModelError([f"sliding_window is {raw['sliding_window']}, LlamaForCausalLM has none"])
    _check_types(raw, _FULL)
    return ()


def _windows_everywhere(raw: Raw, layers: int) -> Windows:
    """Mistral: every layer slides, unless ``sliding_window`` is null."""
    window = _window(raw)
    _check_types(raw, _FULL if window is None else _SLIDING)
    return () if window is None else (window,) * layers


def _windows_from_a_layer_on(raw: Raw, layers: int) -> Windows:
    """Qwen: with ``use_sliding_window``, the layers that ``layer_types`` names, else those from
    ``max_window_layers`` on."""
    window = _window(raw) if raw.get("use_sliding_window") else None
    if window is None:
        _check_types(raw, _FULL)
        return ()
    types = raw.get("layer_types")
    if types is None:
        first = raw.get("max_window_layers", 28)
        if first != 0 and not _is_size(first):
            raise ModelError([f"max_window_layers is {first!r}, not a whole number"])
        return tuple(window if layer >= first else None for layer in range(layers))
    if not isinstance(types, list) or len(types) != layers or any(t not in (_FULL, _SLIDING) for t in types):
        raise ModelError([f"layer_types is {types}, not {layers} times {_FULL!r} or {_SLIDING!r}"])
    return tuple(window if kind == _SLIDING else None for kind in types)


def _window(raw: Raw) -> int | None:
    value: int | None = raw.get("sliding_window", 4096)
    if value is not None and not _is_size(value):
        raise ModelError([f"sliding_window is {value!r}, not a positive whole number"])
    return value


def _check_types(raw: Raw, kind: str) -> None:
    types = raw.get("layer_types") or []
    if not isinstance(types, list) or any(found != kind for found in types):
        raise ModelError([f"layer_types is {types}, while other keys say {kind!r} for every layer"])


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(_no_windows, demanded=()),
    "Qwen2ForCausalLM": Family(_windows_from_a_layer_on, qkv_bias=True),
    "Qwen3ForCausalLM": Family(
        _windows_from_a_layer_on, qk_norm=True, demanded=("num_key_value_heads", "head_dim")
    ),
    "MistralForCausalLM": Family(_windows_everywhere),
}
"""By the one entry of ``architectures``."""
