"""The shape of a Llama-family model, read from ``config.json`` and checked. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.hf_tokenizer import read_json

ARCHITECTURE = "LlamaForCausalLM"


class ModelError(ValueError):
    """A model folder that this engine cannot serve. Each problem names file, finding and expectation."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    max_positions: int
    rms_eps: float
    rope_theta: float
    tied: bool
    """True: the output projection is the embedding."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Both K and V of one position in all layers (ENGINE E10)."""
        return 2 * self.layers * self.kv_heads * self.head_size * bytes_per_value


TINY = LlamaConfig(
    vocabulary=259,
    hidden=64,
    intermediate=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=16,
    max_positions=8192,
    rms_eps=1e-5,
    rope_theta=10_000.0,
    tied=False,
)
"""The built-in random model; its tokenizer is the ByteTokenizer."""


def read_config(folder: Path) -> LlamaConfig:
    """The config of a Hugging Face folder. Raises ModelError with everything that is wrong."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise ModelError([f"{folder}: no such folder"])
    try:
        raw = read_json(path)
    except ValueError as error:
        raise ModelError([str(error)]) from None
    problems = [f"{path}: {problem}" for problem in _unsupported(raw)]
    if not problems:
        numbers, missing = _numbers(raw)
        problems = [f"{path}: {problem}" for problem in missing or _inconsistent(numbers)]
    if problems:
        raise ModelError(problems)
    return LlamaConfig(
        vocabulary=numbers["vocab_size"],
        hidden=numbers["hidden_size"],
        intermediate=numbers["intermediate_size"],
        layers=numbers["num_hidden_layers"],
        heads=numbers["num_attention_heads"],
        kv_heads=numbers["num_key_value_heads"],
        head_size=numbers["head_dim"],
        max_positions=numbers["max_position_embeddings"],
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        tied=bool(raw.get("tie_word_embeddings", False)),
    )


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Newer files keep everything about RoPE in ``rope_parameters``, older ones in ``rope_scaling``."""
    value = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return value if isinstance(value, dict) else {"rope_type": value}


def _unsupported(raw: dict[str, Any]) -> list[str]:
    """What the file asks for and this engine does not have."""
    problems = []
    if raw.get("architectures") != [ARCHITECTURE]:
        problems.append(f"architectures is {raw.get('architectures')}, this engine serves {ARCHITECTURE}")
    if raw.get("hidden_act", "silu") != "silu":
        problems.append(f"hidden_act is {raw['hidden_act']!r}, this engine has 'silu'")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            problems.append(f"{key} is true, this engine has no biases")
    rope = _rope(raw)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        problems.append(f"rope scaling is {kind!r}, this engine has only 'default'")
    if raw.get("quantization_config"):
        problems.append("quantization_config is set, this engine reads plain fp32, fp16 or bf16 weights")
    return problems


_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def _numbers(raw: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """All sizes, with the usual defaults of the two that may be absent; and what is not a size."""
    values: dict[str, Any] = {key: raw.get(key) for key in _REQUIRED}
    values["num_key_value_heads"] = raw.get("num_key_value_heads") or values["num_attention_heads"]
    values["head_dim"] = raw.get("head_dim")
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    if values["head_dim"] is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        values["head_dim"] = hidden // heads
    problems = [
        f"{key} is {value!r}, not a positive whole number"
        for key, value in values.items()
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0
    ]
    return values, problems


def _inconsistent(numbers: dict[str, int]) -> list[str]:
    problems = []
    if numbers["num_attention_heads"] % numbers["num_key_value_heads"]:
        heads, kv_heads = numbers["num_attention_heads"], numbers["num_key_value_heads"]
        problems.append(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if numbers["head_dim"] % 2:
        problems.append(f"head_dim {numbers['head_dim']} is odd, RoPE turns pairs")
    return problems
