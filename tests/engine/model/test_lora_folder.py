"""PEFT folders: what is read, what makes two of them the same, and what is refused, with file and finding."""

from __future__ import annotations

import math
import os
import shutil
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig, MemoryConfig
from engine.model import ModelError, budget, read_adapter
from engine.model.decoder_config import TINY
from engine.model.peft_folder import CONFIG, WEIGHTS
from engine.model.peft_folder import read_adapter as read_peft
from engine.model.weights import expected_shapes
from tests.engine import lora_folders

CONFIG_TINY = EngineConfig(model="tiny", max_lora_rank=16)
SHAPES = expected_shapes(TINY)
Q0 = "model.layers.0.self_attn.q_proj"


def read(folder):
    return read_peft(folder, SHAPES, 16)


def test_what_is_read(tmp_path):
    """Rank, targets in the model's order, and a scaled module for each projection of each layer."""
    found = read(lora_folders.adapter(tmp_path, targets=("up_proj", "q_proj"), rank=8, alpha=4))
    assert (found.rank, found.targets) == (8, ("q_proj", "up_proj"))
    assert [(m.layer, m.target, m.scaling, m.rank) for m in found.modules] == [
        (layer, target, 0.5, 8) for layer in (0, 1) for target in ("q_proj", "up_proj")
    ]
    assert found.modules[0].a.shape == (8, 64)
    facts = read_adapter(CONFIG_TINY, str(tmp_path))
    assert (facts.digest, facts.rank, facts.targets) == (found.digest, 8, ("q_proj", "up_proj"))


def test_scaling_by_rank_by_root_and_by_pattern(tmp_path):
    """alpha / r; alpha / sqrt(r) with use_rslora; rank_pattern and alpha_pattern name modules by their
    ending, as regular expressions."""
    modules = lora_folders.modules_of(TINY, ("q_proj", "v_proj"))
    ranks = {"v_proj": 9}
    pattern = {
        "rank_pattern": {"v_proj": 9},
        "alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 1, "v_proj": 3},
    }
    for rslora, root in ((False, lambda r: r), (True, math.sqrt)):
        changes = pattern | {"use_rslora": rslora}
        wanted = lora_folders.settings_of(("q_proj", "v_proj"), rank=4, alpha=8, **changes)
        found = read(lora_folders.write(tmp_path, wanted, lora_folders.tensors_of(modules, 4, ranks=ranks)))
        scalings = {(m.layer, m.target): m.scaling for m in found.modules}
        assert scalings == {
            (0, "q_proj"): 8 / root(4),
            (1, "q_proj"): 1 / root(4),
            (0, "v_proj"): 3 / root(9),
            (1, "v_proj"): 3 / root(9),
        }
        assert found.rank == 9


def test_equal_content_has_one_digest(tmp_path):
    """Place, order of tensors, metadata, dropout and how targets are written change nothing."""
    digest = read(lora_folders.adapter(tmp_path / "one")).digest
    tensors = lora_folders.tensors_of(lora_folders.modules_of(TINY))
    turned = dict(reversed(tensors.items()))
    changes = {"target_modules": "all-linear", "lora_dropout": 0.9, "base_model_name_or_path": "x"}
    other = lora_folders.write(tmp_path / "two", lora_folders.settings_of(**changes), turned)
    assert read(other).digest == digest
    lora_folders.save_tensors(other / WEIGHTS, tensors, metadata={"format": "pt"})
    assert read(other).digest == digest
    regular = lora_folders.settings_of(target_modules=r".*\.(q|k|v|o|gate|up|down)_proj")
    assert read(lora_folders.write(tmp_path / "three", regular, tensors)).digest == digest


def test_other_content_has_another_digest(tmp_path):
    """Rank, scaling, targets and every single weight count."""
    modules = lora_folders.modules_of(TINY)
    tensors = lora_folders.tensors_of(modules)
    nudged = {name: tensor.copy() for name, tensor in tensors.items()}
    last = list(nudged)[-1]
    nudged[last][-1, -1] = np.nextafter(nudged[last][-1, -1], np.float32(9))
    half = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    fewer = lora_folders.tensors_of(lora_folders.modules_of(TINY, lora_folders.ALL[:-1]))
    folders = (
        (lora_folders.settings_of(), tensors),
        (lora_folders.settings_of(alpha=5), tensors),
        (lora_folders.settings_of(use_rslora=True), tensors),
        (lora_folders.settings_of(alpha_pattern={Q0: 5}), tensors),
        (lora_folders.settings_of(rank=8), lora_folders.tensors_of(modules, 8)),
        (lora_folders.settings_of(lora_folders.ALL[:-1]), fewer),
        (lora_folders.settings_of(), nudged),
        (lora_folders.settings_of(), half),
        (lora_folders.settings_of(), lora_folders.tensors_of(modules, seed=1)),
    )
    digests = {
        read(lora_folders.write(tmp_path / str(i), *folder)).digest for i, folder in enumerate(folders)
    }
    assert len(digests) == len(folders)
    shaped = [  # the same bytes in other matrices
        lora_folders.write(
            tmp_path / f"rank {rank}",
            lora_folders.settings_of(("q_proj",), rank=rank, alpha=rank),
            {
                f"base_model.model.{Q0}.lora_A.weight": np.ones((rank, 32 // rank), np.float32),
                f"base_model.model.{Q0}.lora_B.weight": np.ones((32 // rank, rank), np.float32),
            },
        )
        for rank in (4, 8)
    ]
    assert len({read_peft(folder, None, 16).digest for folder in shaped}) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', this engine serves 'LORA'"),
        ({"use_dora": True}, "use_dora is true, this engine serves plain LoRA"),
        ({"use_qalora": True}, "use_qalora is true"),
        ({"bias": "lora_only"}, "bias is 'lora_only', this engine serves 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is [1]"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"kasa_config": {"beta": 1}}, "kasa_config is {'beta': 1}, this engine serves None"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"r": 0}, "r is 0, not a whole number of at least 1"),
        ({"rank_pattern": {"q_proj": 0}}, "not a table of which each value is a whole number of at least 1"),
        ({"r": "8"}, "r is '8'"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"lora_alpha": 1e308}, "lora_alpha is 1e+308, not a number of at most"),
        ({"alpha_pattern": {"q_proj": 10**400}}, "alpha_pattern is {'q_proj': 1000"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern '(' is no regular expression"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern is"),
        ({"target_modules": [1]}, "target_modules is [1]"),
        ({"target_modules": ["q_proj"]}, "model.layers.0.self_attn.k_proj is in this file, but not among"),
        ({"r": 5}, f"{Q0} is [64, 4] times [4, 64], rank 5 of this model makes it [64, 5] times [5, 64]"),
        ({"layers_to_transform": [0]}, "model.layers.1.self_attn.q_proj is in this file, but not among"),
        ({"r": 32}, f"{Q0} has rank 32, max_lora_rank is 16"),
        ({"rank_pattern": {"q_proj": 17}}, f"{Q0} has rank 17, max_lora_rank is 16"),
    ],
)
def test_refused_by_its_config(tmp_path, changes, says):
    """Variants that this engine would compute wrongly, and settings that do not fit the weights."""
    with pytest.raises(ModelError) as refused:
        read(lora_folders.adapter(tmp_path, **changes))
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def without(tensors, ending):
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(ending)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: without(t, "1.mlp.up_proj.lora_A.weight"), "model.layers.1.mlp.up_proj has no lora_A"),
        (lambda t: without(t, "1.mlp.up_proj.lora_B.weight"), "model.layers.1.mlp.up_proj has no lora_B"),
        (
            lambda t: {n: x for n, x in t.items() if ".1.mlp.up_proj." not in n},
            "model.layers.1.mlp.up_proj is missing here, but among the target modules of",
        ),
        (lambda t: {}, "holds no LoRA weights"),
        (
            lambda t: t | {"base_model.model.lm_head.lora_A.weight": np.zeros((4, 64), np.float32)},
            "tensor base_model.model.lm_head.lora_A.weight has no place: LoRA is served for q_proj, k_proj",
        ),
        (
            lambda t: (
                t | {"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((4, 259), np.float32)}
            ),
            "embed_tokens.lora_embedding_A has no place",
        ),
        (
            lambda t: t | {f"base_model.model.{Q0}.lora_magnitude_vector": np.zeros(64, np.float32)},
            "lora_magnitude_vector has no place",
        ),
        (
            lambda t: (
                t
                | {
                    f"base_model.model.{Q0.replace('0', '7')}.{h}": np.zeros((4, 4), np.float32)
                    for h in HALVES
                }
            ),
            "model.layers.7.self_attn.q_proj is no module of this model",
        ),
        (
            lambda t: t | {f"base_model.model.{Q0}.lora_B.weight": np.zeros((32, 4), np.float32)},
            f"{Q0} is [32, 4] times [4, 64], rank 4 of this model makes it [64, 4] times [4, 64]",
        ),
        (
            lambda t: t | {f"base_model.model.{Q0}.lora_B.weight": np.zeros((64, 4))},
            f"tensor base_model.model.{Q0}.lora_B.weight is F64, this engine reads F32, F16, BF16",
        ),
    ],
)
def test_refused_by_its_weights(tmp_path, change, says):
    """Wrong shapes, targets that cannot be adapted, halves and torn folders."""
    tensors = change(lora_folders.tensors_of(lora_folders.modules_of(TINY)))
    with pytest.raises(ModelError) as refused:
        read(lora_folders.write(tmp_path, lora_folders.settings_of(), tensors))
    assert says in str(refused.value)
    assert str(tmp_path / WEIGHTS) in str(refused.value)


HALVES = ("lora_A.weight", "lora_B.weight")


def test_refused_without_its_files(tmp_path):
    """No folder, no config, no safetensors file, each by its name."""
    with pytest.raises(ModelError, match="no such folder"):
        read_adapter(CONFIG_TINY, str(tmp_path / "none"))
    for name in (CONFIG, WEIGHTS):
        folder = lora_folders.adapter(tmp_path / name)
        (folder / name).unlink()
        with pytest.raises(ModelError, match=f"{name}: missing"):
            read(folder)
    (folder / WEIGHTS).mkdir()
    with pytest.raises(ModelError, match="directory"):
        read(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return lora_folders.adapter(tmp_path_factory.mktemp("whole"), targets=("q_proj",), rank=1)


@settings(max_examples=200)
@given(data=st.data())
def test_a_torn_file_is_refused(whole, tmp_path_factory, data):
    """Cut anywhere or with any byte of its header turned, a file is refused as itself or read as it is: no
    other error comes out of it."""
    content = bytearray((whole / WEIGHTS).read_bytes())
    folder = tmp_path_factory.mktemp("torn")
    shutil.copy(whole / CONFIG, folder / CONFIG)
    if data.draw(st.booleans()):
        torn = content[: data.draw(st.integers(0, len(content) - 1))]
        (folder / WEIGHTS).write_bytes(torn)
        with pytest.raises(ModelError):
            read(folder)
    else:
        header = int.from_bytes(content[:8], "little") + 8
        content[data.draw(st.integers(0, header - 1))] ^= data.draw(st.integers(1, 255))
        (folder / WEIGHTS).write_bytes(content)
        with suppress(ModelError):
            read(folder)


def test_a_file_that_is_longer_or_shorter_than_its_tensors_is_refused(whole, tmp_path):
    """Before any of it is read, however long it is."""
    content = (whole / WEIGHTS).read_bytes()
    shutil.copy(whole / CONFIG, tmp_path / CONFIG)
    for torn in (content + b"x", content[:-1]):
        (tmp_path / WEIGHTS).write_bytes(torn)
        with pytest.raises(ModelError, match=rf"has {len(torn)} bytes, its header says {len(content)}"):
            read(tmp_path)
    os.truncate(tmp_path / WEIGHTS, 1 << 40)
    with pytest.raises(ModelError, match="has 1099511627776 bytes, its header says"):
        read(tmp_path)
    (tmp_path / WEIGHTS).write_bytes((1 << 39).to_bytes(8, "little"))
    os.truncate(tmp_path / WEIGHTS, 1 << 40)
    with pytest.raises(ModelError, match="cannot hold its header"):
        read(tmp_path)


def test_the_simulated_model_takes_any_adapter(tmp_path):
    """It reads a folder that is there, whatever shapes it holds, and takes another one's name for content."""
    simulated = EngineConfig(model="simulated")
    one = read_adapter(simulated, str(lora_folders.adapter(tmp_path / "one", targets=("q_proj",))))
    assert one.targets == ("q_proj",)
    none = [read_adapter(simulated, str(tmp_path / name)).digest for name in ("x", "y", "x")]
    assert none[0] == none[2] != none[1]
    with pytest.raises(ModelError, match="has rank 65, max_lora_rank is 64"):
        read_adapter(simulated, str(lora_folders.adapter(tmp_path / "two", rank=65)))


def test_the_budget_leaves_room_for_the_adapters_of_the_start(tmp_path):
    """KV gets what weights and the ``max_adapters`` largest of them leave; one that is gone takes nothing."""
    small, large = (str(lora_folders.adapter(tmp_path / f"r{rank}", rank=rank)) for rank in (2, 8))
    plain = replace(CONFIG_TINY, dtype="fp32", memory=MemoryConfig(total=4_000_000), max_adapters=1)
    found = budget(replace(plain, adapters={"small": small, "large": large, "gone": str(tmp_path / "gone")}))
    assert found.adapters == 4 * read_adapter(plain, large).weights > 4 * read_adapter(plain, small).weights
    assert (
        found.weights + found.adapters + found.kv
        <= 4_000_000
        < budget(plain).weights + budget(plain).kv + 9000
    )
    assert found.blocks < budget(plain).blocks
    with pytest.raises(ModelError, match="MB of adapters and no KV block"):
        budget(replace(plain, adapters={"large": large}, memory=MemoryConfig(total=460_000)))


def test_layers_that_are_none_are_all(tmp_path):
    """An empty list means what peft means by it."""
    adapter = lora_folders.adapter(tmp_path, layers_to_transform=[])
    assert {module.layer for module in read(adapter).modules} == {0, 1}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_values_that_are_no_numbers_are_refused(tmp_path, value, dtype):
    """Each output of such an adapter would be none either."""
    lora_folders.adapter(tmp_path)
    tensors = lora_folders.tensors_of(lora_folders.modules_of(TINY))
    tensors = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    assert read(_saved(tmp_path, tensors)).rank == 4
    name = list(tensors)[5]
    tensors[name][1, 2] = value
    with pytest.raises(ModelError, match=f"tensor {name} holds values that are no numbers"):
        read(_saved(tmp_path, tensors))


def _saved(folder, tensors):
    lora_folders.save_tensors(folder / WEIGHTS, tensors)
    return folder


@pytest.mark.parametrize("folder", ["x" * 5000, "~nobody-of-this-name/adapter"])
@pytest.mark.parametrize("model", ["tiny", "simulated"])
def test_a_path_that_can_be_none_is_said(folder, model):
    """Neither a traceback nor a wrong word."""
    with pytest.raises(ModelError, match="can be no folder") as refused:
        read_adapter(EngineConfig(model=model), folder)
    assert len(str(refused.value)) < 400
