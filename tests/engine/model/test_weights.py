"""Folders in Hugging Face layout: the good ones load, the broken ones say what is wrong and where."""

import json
import math
import os
import shutil
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from engine.model.config_json import read_config  # noqa: E402
from engine.model.decoder_config import TINY, ModelError  # noqa: E402
from engine.model.tensor_file import WIDTHS, each_tensor  # noqa: E402
from engine.model.weights import (  # noqa: E402
    check_weights,
    expected_shapes,
    load_tensors,
    random_digest,
    random_tensors,
    weight_files,
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
    loaded, written = load_tensors(folder, small_config)[0], random_tensors(small_config, 0)
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
    loaded, _ = load_tensors(folder, small_config)
    assert all(torch.equal(loaded[name], whole[name]) for name in names)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-1\.safetensors: missing"):
        load_tensors(folder, small_config)


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
    with pytest.raises(
        ModelError, match=r"tensor model\.norm\.weight is I32, this engine reads F32, F16, BF16"
    ):
        load_tensors(folder, small_config)
    (folder / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(
        ModelError, match="not a safetensors file, or a torn one: 7 bytes cannot hold its header"
    ):
        load_tensors(folder, small_config)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="neither"):
        load_tensors(folder, small_config)


@pytest.mark.parametrize("change", [-1, -100_000, 1])
def test_a_torn_file_is_refused_with_the_numbers(folder, small_config, change):
    """A download that was cut off, or a file with something behind its tensors."""
    path = folder / "model.safetensors"
    size = path.stat().st_size
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"x")
    for look in (check_weights, load_tensors):
        with pytest.raises(
            ModelError, match=f"has {size + change} bytes, its header says {size}: it is torn"
        ):
            look(folder, small_config)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(folder, small_config):
    """Mapped into memory, it would end the process."""
    path = folder / "model.safetensors"
    size = path.stat().st_size
    tensors = each_tensor(path)
    next(tensors)
    os.truncate(path, size // 2)
    with pytest.raises(
        ValueError, match=rf"ends at byte {size // 2} in tensor .* it changes while it is read"
    ):
        list(tensors)


def test_gaps_between_tensors_are_refused(tmp_path):
    """Bytes that no tensor owns would escape the digest, tensors that overlap are no format of ours."""
    path = tmp_path / "x.safetensors"
    two = {"dtype": "F32", "shape": [1]}
    for offsets in ([4, 8], [2, 6]):
        header = {"a": two | {"data_offsets": [0, 4]}, "b": two | {"data_offsets": offsets}}
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offsets[1]))
        if offsets == [4, 8]:
            assert [name for name, _ in each_tensor(path)] == ["a", "b"]
        else:
            with pytest.raises(ValueError, match="tensor b begins at byte"):
                list(each_tensor(path))


@given(st.data())
def test_no_content_of_a_file_is_anything_but_read_or_refused(content, data):
    """Bytes changed, cut or put in at random: tensors, or a ValueError that names the file."""
    path, whole = content
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 200))
        changed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    path.write_bytes(changed[: data.draw(st.integers(0, len(changed) + 1))])
    refused = str(path)
    try:
        for _, tensor in each_tensor(path):
            assert len(tensor.data) == math.prod(tensor.shape) * WIDTHS[tensor.dtype]
    except ValueError as error:
        refused = str(error)
    assert str(path) in refused


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        {},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4 * 10**30]},
    ],
)
def test_entries_that_describe_no_tensor_are_refused(tmp_path, entry):
    """By name, with what stands there."""
    path = tmp_path / "x.safetensors"
    text = json.dumps({"a": entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(ValueError, match=r"x\.safetensors: (tensor a|has \d+ bytes, its header says)"):
        list(each_tensor(path))


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A file with three small tensors: (a path to write to, its bytes)."""
    path = tmp_path_factory.mktemp("content") / "x.safetensors"
    tensors = {"a": torch.ones(2, 3), "b": torch.ones(5).half(), "c": torch.ones(1).bfloat16()}
    safetensors.save_file(tensors, path)
    return path, path.read_bytes()


def test_what_cannot_be_read_is_a_model_error(folder, small_config):
    """A folder in place of the file, or rights that are missing: named, with the reason."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").mkdir()
    with pytest.raises(ModelError, match="neither"):
        load_tensors(folder, small_config)
    (folder / "model.safetensors.index.json").rmdir()
    index = {"weight_map": {"model.norm.weight": "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"gone\.safetensors: missing, though"):
        weights_digest(folder)


def test_loaded_tensors_outlive_their_file(folder, small_config):
    """What a running engine computes with is its own memory, whatever becomes of the folder."""
    tensors, _ = load_tensors(folder, small_config)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    os.truncate(folder / "model.safetensors", 0)
    shutil.rmtree(folder)
    assert all(torch.equal(tensors[name], before[name]) for name in before)


def test_the_digest_is_that_of_the_content(folder, tmp_path):
    """A copy has the same digest, one changed weight another."""
    before = weights_digest(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert weights_digest(copy) == before
    resave(copy, lambda tensors: tensors["model.norm.weight"].add_(1e-3))
    assert weights_digest(copy) != before


def test_loading_tells_the_digest_of_what_it_read(folder, small_config):
    """So that a worker knows whether it serves what the gateway has looked at."""
    assert load_tensors(folder, small_config)[1] == weights_digest(folder)


def test_random_weights_are_seeded():
    """The same seed gives the same model, in name and in content."""
    one, same, other = (random_tensors(TINY, seed) for seed in (1, 1, 2))
    assert {name: tuple(tensor.shape) for name, tensor in one.items()} == expected_shapes(TINY)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    assert random_digest(TINY, 1) == random_digest(TINY, 1) != random_digest(TINY, 2)


def test_the_number_of_parameters_is_that_of_the_tensors(small_config):
    """What the memory budget counts is what is loaded."""
    variants = (replace(small_config, qkv_bias=True), replace(small_config, qk_norm=True))
    for config in (TINY, small_config, *variants):
        assert config.parameters == sum(tensor.numel() for tensor in random_tensors(config, 0).values())


@pytest.mark.parametrize("name", [None, 5, 1.5, True, [], ["x.safetensors"], {"a": 1}])
def test_an_index_that_names_no_files_is_refused(tmp_path, name):
    """Beside good names too."""
    for shards in ({"a": name}, {"a": "x.safetensors", "b": name}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        with pytest.raises(ModelError, match=r"index\.json: weight_map names .* no file's name"):
            weight_files(tmp_path)
