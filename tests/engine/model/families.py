"""Small random models of every architecture that is served, saved by transformers itself."""

import warnings
from pathlib import Path

import torch
import transformers

COMMON = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
WINDOW = 24
"""Shorter than most prompts, and no multiple of a block."""

FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama3": lambda: transformers.LlamaConfig(**COMMON, rope_parameters=dict(LLAMA3)),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON),
    "qwen2-sliding": lambda: transformers.Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=24),
    "mistral": lambda: transformers.MistralConfig(**COMMON, sliding_window=WINDOW, head_dim=32),
}


def save(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a model of this family with random weights, biases and norms included; the same every time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = FAMILIES[family]()
        model = transformers.AutoModelForCausalLM.from_config(config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(_random(name, weight.shape, config.tie_word_embeddings, generator))
        model.to(dtype).save_pretrained(folder)


def _random(name: str, shape: torch.Size, tied: bool, generator: torch.Generator) -> torch.Tensor:
    """Scaled so that activations stay near 1 and logits are spread widely: greedy choices are then clear."""
    drawn = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 0.5 * drawn if name.endswith("bias") else 1 + 0.2 * drawn
    return drawn if "embed_tokens" in name and not tied else drawn / shape[1] ** 0.5
