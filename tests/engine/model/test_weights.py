"""Folders in Hugging Face layout: the good ones load, the broken ones say what is wrong and where."""

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from engine.model.llama_config import TINY, ModelError, read_config  # noqa: E402
from engine.model.weights import (  # noqa: E402
    expected_shapes,
    load_tensors,
    random_digest,
    random_tensors,
    weights_digest,
)

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(model_folder_of, small_config):
    return model_folder_of(small_config)


def edit(folder, **changes):
    path = folder / "config.json"
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in raw.items() if value != "absent"}))


def resave(folder, change):
    tensors = safetensors.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")


def test_a_good_folder_loads(folder, small_config):
    """Config and tensors come back as they were written."""
    assert read_config(folder) == small_config
    loaded, written = load_tensors(folder, small_config), random_tensors(small_config, 0)
    assert loaded.keys() == written.keys()
    assert all(torch.equal(loaded[name], written[name]) for name in written)


def test_shards_load_like_one_file(folder, small_config):
    """An index over several files gives the same tensors."""
    whole = safetensors.load_file(folder / "model.safetensors")
    names = sorted(whole)
    index = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        safetensors.save_file({name: whole[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    loaded = load_tensors(folder, small_config)
    assert all(torch.equal(loaded[name], whole[name]) for name in names)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-1\.safetensors: missing"):
        load_tensors(folder, small_config)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            r"architectures is \['GPT2LMHeadModel'\], this engine serves Llama",
        ),
        ({"architectures": "absent"}, "architectures is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope scaling is 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling is 'yarn'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
        ({"hidden_size": "absent"}, "hidden_size is None, not a positive whole number"),
        ({"vocab_size": -3}, "vocab_size is -3"),
        ({"num_attention_heads": 3}, "num_attention_heads 3 is no multiple of num_key_value_heads 2"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
    ],
)
def test_configs_that_cannot_be_served_are_refused(folder, changes, says):
    """The message names the file, what it says, and what is served."""
    edit(folder, **changes)
    with pytest.raises(ModelError, match=says) as caught:
        read_config(folder)
    assert all(problem.startswith(f"{folder / 'config.json'}: ") for problem in caught.value.problems)


def test_all_problems_of_a_config_are_told_at_once(folder):
    """Nobody mends a config one error at a time."""
    edit(folder, hidden_act="gelu", mlp_bias=True, architectures=["X"])
    with pytest.raises(ModelError) as caught:
        read_config(folder)
    assert len(caught.value.problems) == 3


def test_defaults_and_newer_forms_are_understood(folder, small_config):
    """Absent KV heads mean as many as heads, absent head_dim the quotient; rope_parameters holds theta."""
    edit(
        folder,
        num_key_value_heads="absent",
        head_dim="absent",
        rope_parameters={"rope_theta": 5e5, "rope_type": "default"},
    )
    config = read_config(folder)
    assert (config.kv_heads, config.head_size, config.rope_theta) == (4, 8, 5e5)


def test_no_folder_no_config_no_json(tmp_path):
    """Each of the three is said plainly."""
    with pytest.raises(ModelError, match="no such folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="not an object"):
        read_config(tmp_path)


def test_missing_wrong_and_unknown_tensors_are_named(folder, small_config):
    """Every tensor at fault, with the shape it should have."""

    def change(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.norm.weight"] = torch.ones(5)
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)

    resave(folder, change)
    with pytest.raises(ModelError) as caught:
        load_tensors(folder, small_config)
    text = str(caught.value)
    assert "tensor model.layers.1.mlp.up_proj.weight is missing" in text
    assert "tensor model.norm.weight has shape [5], config.json makes it [32]" in text
    assert "tensor model.layers.0.self_attn.q_proj.bias has no place in this model" in text


def test_long_lists_of_problems_are_cut(folder, small_config):
    """A wholly different file does not print a thousand lines."""
    resave(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers" in name])
    with pytest.raises(ModelError, match="and 13 more of this kind"):
        load_tensors(folder, small_config)


def test_an_untied_model_needs_its_output_projection(folder, small_config):
    """Without tied embeddings, lm_head must be there."""
    edit(folder, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is missing"):
        load_tensors(folder, read_config(folder))


def test_broken_and_absent_weight_files(folder, small_config):
    """Not safetensors at all, or integers in them, or nothing there."""
    resave(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32, dtype=torch.int32)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight is torch\.int32"):
        load_tensors(folder, small_config)
    (folder / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_tensors(folder, small_config)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="neither"):
        load_tensors(folder, small_config)


def test_the_digest_is_that_of_the_content(folder, tmp_path):
    """A copy has the same digest, one changed weight another."""
    before = weights_digest(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert weights_digest(copy) == before
    resave(copy, lambda tensors: tensors["model.norm.weight"].add_(1e-3))
    assert weights_digest(copy) != before


def test_random_weights_are_seeded():
    """The same seed gives the same model, in name and in content."""
    one, same, other = (random_tensors(TINY, seed) for seed in (1, 1, 2))
    assert {name: tuple(tensor.shape) for name, tensor in one.items()} == expected_shapes(TINY)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    assert random_digest(TINY, 1) == random_digest(TINY, 1) != random_digest(TINY, 2)


def test_the_number_of_parameters_is_that_of_the_tensors(small_config):
    """What the memory budget counts is what is loaded."""
    for config in (TINY, small_config):
        assert config.parameters == sum(tensor.numel() for tensor in random_tensors(config, 0).values())
