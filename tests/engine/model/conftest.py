"""Small models made on the spot."""

import json

import pytest


@pytest.fixture
def small_config():
    """A model smaller than tiny, with tied embeddings."""
    from engine.model.decoder_config import DecoderConfig

    return DecoderConfig(
        vocabulary=300,
        hidden=32,
        intermediate=48,
        layers=2,
        heads=4,
        kv_heads=2,
        head_size=8,
        max_positions=256,
        rms_eps=1e-5,
        rope_theta=10_000.0,
        tied=True,
    )


def _raw(config):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": config.vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
        "eos_token_id": 258,
        "bos_token_id": 257,
        "torch_dtype": "float32",
    }


@pytest.fixture(scope="session")
def raw_config_of():
    """``raw_config_of(config)``: the content of its config.json."""
    return _raw


@pytest.fixture
def model_folder_of(tmp_path, raw_config_of):
    """``make(config, seed)``: a folder in Hugging Face layout with random weights, no tokenizer."""

    def make(config, seed=0):
        pytest.importorskip("torch")
        from safetensors.torch import save_file

        from engine.model.weights import random_tensors

        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(raw_config_of(config)))
        save_file(random_tensors(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


@pytest.fixture(scope="session")
def write_tokenizer():
    """``write(folder)``: a tokenizer.json of 259 bytes and words, as the byte tokenizer's ids."""

    def write(folder):
        from tokenizers import Tokenizer, models

        vocabulary = {f"<{number}>": number for number in range(259)}
        Tokenizer(models.WordLevel(vocabulary, unk_token="<0>")).save(str(folder / "tokenizer.json"))

    return write
