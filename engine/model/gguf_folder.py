"""A GGUF file (Llama family, byte-level BPE) written out as a folder in Hugging Face layout.

Done once, when a model is pulled: weights become bf16 safetensors, so that starting an engine reads
plain tensors and never a quantised format. Needs the ``[engine]`` extra (gguf, torch, safetensors).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.float32]

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL = 3
"""GGUF's token type of special tokens."""


def convert(gguf_path: Path, folder: Path) -> None:
    """Write ``folder`` (must exist) from ``gguf_path``. Raises ValueError for what it cannot express."""
    import gguf

    reader = gguf.GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise ValueError(f"{gguf_path}: architecture is {fields.get('general.architecture')!r}, not 'llama'")
    names = {tensor.name for tensor in reader.tensors}
    config = _config(fields, tied="output.weight" not in names)
    _write_weights(reader, config, folder / "model.safetensors")
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json", {k: v for k, v in config.items() if k.endswith("_token_id")}
    )
    _write_json(folder / "tokenizer.json", tokenizer_json(fields))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields, config))


def unpermute(weight: Array, heads: int) -> Array:
    """Rows of q or k from GGUF's rotary order (pairs side by side) to Hugging Face's (halves)."""
    rows = weight.shape[0]
    return (
        weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": fields.get("llama.rope.dimension_count", fields["llama.embedding_length"] // heads),
        "max_position_embeddings": fields["llama.context_length"],
        # Stored as a 32-bit float: 9.9999997e-06 is meant as 1e-05.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    for key, field in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if f"tokenizer.ggml.{field}_token_id" in fields:
            config[f"{key}_token_id"] = fields[f"tokenizer.ggml.{field}_token_id"]
    return config


def _hf_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``. Raises ValueError."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_TENSORS and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.weight"
    if len(parts) == 2 and parts[0] in _TENSORS and parts[1] == "weight":
        return f"{_TENSORS[parts[0]]}.weight"
    raise ValueError(f"tensor {name!r} has no place in a plain Llama")


def _write_weights(reader: Any, config: dict[str, Any], path: Path) -> None:
    import gguf
    import torch
    from safetensors.torch import save

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            weight = unpermute(weight, heads[kind])
        tensors[_hf_name(tensor.name)] = torch.tensor(weight).to(torch.bfloat16)
    path.write_bytes(save(tensors, metadata={"format": "pt"}))


def tokenizer_json(fields: dict[str, Any]) -> dict[str, Any]:
    """The ``tokenizers`` library's JSON for GGUF's fields of a byte-level BPE.

    The ``smollm`` pre-tokenizer parts off every digit *before* the GPT-2 pattern runs (llama.cpp does
    so too); so "\\n\\n1" is one token for both line ends and one for the digit.
    """
    if fields["tokenizer.ggml.model"] != "gpt2" or fields.get("tokenizer.ggml.pre") != "smollm":
        kind = f"{fields['tokenizer.ggml.model']}/{fields.get('tokenizer.ggml.pre')}"
        raise ValueError(f"tokenizer type {kind} is not known here, only gpt2/smollm")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    digits = {"type": "Digits", "individual_digits": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _special(token, text)
            for token, (text, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _special(token: int, text: str) -> dict[str, Any]:
    strict = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": text, **strict, "special": True}


def _tokenizer_config(fields: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields.get("tokenizer.chat_template"),
    }
    for name in ("bos", "eos", "pad"):
        if f"{name}_token_id" in config:
            settings[f"{name}_token"] = tokens[config[f"{name}_token_id"]]
    return settings


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
