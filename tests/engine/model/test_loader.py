"""From a name to runner, tokenizer and identity."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from engine.config import EngineConfig, MemoryConfig, SchedulerConfig
from engine.kv.blocks import namespace_root
from engine.model import (
    ModelError,
    budget,
    check,
    fingerprint,
    identity,
    kv_bytes_per_token,
    load_runner,
    load_tokenizer,
    max_positions,
    resolve,
    with_kv_blocks,
)
from engine.model.byte_tokenizer import ByteTokenizer
from engine.model.decoder_config import TINY
from engine.model.words import GENERATED, WordsTokenizer

SIMULATED = EngineConfig(model="simulated")
TINY_CONFIG = EngineConfig(model="tiny", dtype="fp32")


@pytest.fixture
def no_models(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))


def test_unknown_names_say_what_there_is(no_models):
    """The error lists the built-in names and the known models with how to get them."""
    with pytest.raises(
        ModelError, match=r"'gpt-9' is no folder.*simulated, tiny, smollm2-135m .*bench model pull"
    ):
        resolve("gpt-9")


def test_a_known_model_that_is_not_pulled_says_how(no_models):
    """The way out is in the message."""
    with pytest.raises(ModelError, match="run bench model pull smollm2-135m"):
        load_tokenizer(EngineConfig())


def test_a_folder_is_a_model(model_folder_of, write_tokenizer, small_config):
    """Config, runner and limits come from the folder; a tokenizer that is missing is said."""
    folder = model_folder_of(small_config)
    config = EngineConfig(model=str(folder), dtype="fp32")
    assert resolve(str(folder)) == folder
    assert max_positions(config) == 256
    with pytest.raises(ModelError, match=r"tokenizer\.json: missing"):
        load_runner(config)
    write_tokenizer(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ModelError, match="architectures is"):
        load_runner(config)


@pytest.mark.torch
def test_a_folder_that_changed_since_the_start_is_refused(model_folder_of, write_tokenizer, small_config):
    """What a worker loads is what the gateway looked at, or it is not loaded (ENGINE E7, E51)."""
    folder = model_folder_of(small_config)
    write_tokenizer(folder)
    config = EngineConfig(model=str(folder), dtype="fp32")
    expected = fingerprint(identity(config))
    assert load_runner(config, expected=expected).max_positions == 256
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"rms_norm_eps": 1e-3}))
    with pytest.raises(ModelError, match=r"not what it was when the engine started .* restart the engine"):
        load_runner(config, expected=expected)
    assert fingerprint(identity(config)) != expected
    shutil.rmtree(folder)
    for look in (load_runner, check, identity, load_tokenizer):
        with pytest.raises(ModelError, match=f"{folder}: no such folder"):
            look(config)


@pytest.mark.torch
def test_a_torn_folder_is_found_before_anything_starts(model_folder_of, write_tokenizer, small_config):
    """The check reads the files' headers: sizes and shapes, not a single weight."""
    folder = model_folder_of(small_config)
    config = EngineConfig(model=str(folder))
    check(config)
    size = (folder / "model.safetensors").stat().st_size
    os.truncate(folder / "model.safetensors", size - 1)
    with pytest.raises(ModelError, match=f"has {size - 1} bytes, its header says {size}"):
        check(config)


@pytest.mark.torch
def test_a_model_makes_no_more_positions_than_are_asked_for(model_folder_of, write_tokenizer, small_config):
    """A context of a million tokens takes memory for its rotations only if it is used."""
    folder = model_folder_of(small_config)
    write_tokenizer(folder)
    config = EngineConfig(model=str(folder), max_model_len=20)
    assert load_runner(config).max_positions == 20


def test_the_simulated_model_reads_any_word_and_writes_known_ones():
    """Runner and tokenizer fit: what it draws can be read, what it is told has ids below the limit."""
    runner, tokenizer = load_runner(SIMULATED), load_tokenizer(SIMULATED)
    assert runner.vocabulary == tokenizer.vocabulary
    assert isinstance(tokenizer, WordsTokenizer)
    assert max(tokenizer.encode("any words")) < runner.vocabulary
    assert max_positions(SIMULATED) == runner.max_positions
    assert not tokenizer.eos_ids & set(range(GENERATED))


@pytest.mark.torch
def test_tiny_is_seeded_and_needs_no_files(no_models):
    """Runner and tokenizer agree on vocabulary and end tokens."""
    pytest.importorskip("torch")
    runner = load_runner(TINY_CONFIG)
    assert (runner.vocabulary, runner.eos_ids) == (ByteTokenizer.vocabulary, ByteTokenizer.eos_ids)
    assert runner.max_positions == max_positions(TINY_CONFIG) == TINY.max_positions


def test_identity_is_what_the_namespace_root_takes():
    """Model, seed and precision each change the root; workers and threads do not (ENGINE E7)."""

    def root(config):
        return namespace_root(**identity(config), block_size=16, isolation_key="t")

    assert root(TINY_CONFIG) == root(replace(TINY_CONFIG, workers=2, threads=2))
    others = [SIMULATED, replace(TINY_CONFIG, seed=1), replace(TINY_CONFIG, dtype="bf16")]
    assert len({root(config) for config in [TINY_CONFIG, *others]}) == 4


def test_limits_are_the_smaller_of_model_and_config():
    """max_model_len may lower the model's own limit, never raise it."""
    assert max_positions(replace(TINY_CONFIG, max_model_len=100)) == 100
    assert max_positions(replace(TINY_CONFIG, max_model_len=10**6)) == TINY.max_positions


def test_the_budget_cuts_memory_into_blocks():
    """(N + 1) blocks beside the weights fill the total, as near as a block comes (ENGINE E10)."""
    assert kv_bytes_per_token(TINY_CONFIG) == 2 * 2 * 2 * 16 * 4
    assert kv_bytes_per_token(SIMULATED) == 0
    total = 4_000_000
    config = replace(TINY_CONFIG, memory=MemoryConfig(total=total))
    found = budget(config)
    per_block = 16 * kv_bytes_per_token(config)
    assert found.weights == 4 * TINY.parameters
    assert found.kv == (found.blocks + 1) * per_block
    assert total - per_block < found.weights + found.kv <= total
    assert with_kv_blocks(config).memory.kv_blocks == found.blocks
    assert budget(replace(config, memory=MemoryConfig(kv_blocks=7))).blocks == 7
    assert budget(SIMULATED).blocks > 0
    crowded = replace(TINY_CONFIG, scheduler=SchedulerConfig(max_running=1_000_000))
    assert budget(crowded).blocks > budget(replace(crowded, workers=4)).blocks > 0
    assert 0 < budget(TINY_CONFIG).blocks <= 4 * 64 * (TINY.max_positions // 16)  # more is of no use


def test_too_little_memory_is_said_in_numbers():
    """A total that the weights alone fill is refused."""
    with pytest.raises(ModelError, match=r"0\.4 MB holds 0\.4 MB of weights and no KV block"):
        budget(replace(TINY_CONFIG, memory=MemoryConfig(total=440_000)))


@pytest.mark.parametrize(
    ("config", "memory"),
    [
        (SIMULATED, MemoryConfig(kv_blocks=0)),
        (TINY_CONFIG, MemoryConfig(kv_blocks=0)),
        (TINY_CONFIG, MemoryConfig(total=0)),
    ],
)
def test_no_memory_is_no_default(config, memory):
    """0 blocks or 0 bytes are refused, never read as "as many as you like"."""
    with pytest.raises(ModelError, match="0"):
        budget(replace(config, memory=memory))


def test_the_gateway_side_imports_no_torch():
    """Tokenizer, identity and limits of every kind of model come without torch (and its gigabyte)."""
    code = (
        "import sys; from engine.config import EngineConfig; from engine import model\n"
        "for name in ('tiny', 'simulated'):\n"
        "    c = EngineConfig(model=name); model.load_tokenizer(c); model.identity(c); model.budget(c)\n"
        "model.load_runner(EngineConfig(model='simulated'))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
