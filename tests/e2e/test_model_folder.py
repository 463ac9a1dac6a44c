"""What becomes of a running engine whose model folder changes under it: real processes, a real model."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig, HealthConfig, MemoryConfig
from engine.config_io import write_config
from tests.e2e.test_engine_processes import Engine, start, stop, until

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


def write_model(folder: Path, seed: int) -> None:
    from tokenizers import Tokenizer, models

    from engine.model.decoder_config import TINY
    from engine.model.weights import random_tensors

    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": TINY.vocabulary,
        "hidden_size": TINY.hidden,
        "intermediate_size": TINY.intermediate,
        "num_hidden_layers": TINY.layers,
        "num_attention_heads": TINY.heads,
        "num_key_value_heads": TINY.kv_heads,
        "max_position_embeddings": 512,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file(random_tensors(TINY, seed), folder / "model.safetensors")
    vocabulary = {f"w{number}": number for number in range(TINY.vocabulary)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="w0")).save(str(folder / "tokenizer.json"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Engine, Path]]:
    model = tmp_path / "model"
    write_model(model, seed=0)
    engine = start(tmp_path, config(model))
    yield engine, model
    if engine.process.poll() is None:
        stop(engine)


def config(model: Path) -> EngineConfig:
    return EngineConfig(
        model=str(model),
        dtype="fp32",
        memory=MemoryConfig(kv_blocks=64),
        health=HealthConfig(restart_backoff=0.05, max_restarts_per_minute=1),
    )


def complete(engine: Engine) -> tuple[int, dict]:
    body = {
        "model": engine.public.get("/v1/models").json()["data"][0]["id"],
        "prompt": [5, 6, 7],
        "max_tokens": 4,
    }
    answer = engine.public.post("/v1/completions", json=body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda model: shutil.rmtree(model), "no such folder"),
        (lambda model: os.truncate(model / "model.safetensors", 100_000), "it is torn"),
        (lambda model: write_model(model, seed=1), "not what it was when the engine started"),
    ],
    ids=["vanishes", "is torn", "is another one"],
)
def test_a_folder_that_changes_while_its_model_is_served(engine, harm, says):
    """The engine serves on from memory. A worker that must load again does not: not ready, 503 with the
    reason, and the process ends when it is told to."""
    engine, model = engine
    code, before = complete(engine)
    assert code == 200, before
    harm(model)
    assert complete(engine)[1]["choices"] == before["choices"]
    os.kill(engine.workers()[0]["pid"], signal.SIGKILL)
    until(lambda: says in engine.public.get("/ready").text, 30)
    assert engine.public.get("/ready").status_code == 503
    code, answer = complete(engine)
    assert (code, answer["error"]["code"]) == (503, "not_ready")
    assert str(model) in answer["error"]["message"]
    assert engine.public.get("/live").status_code == 200
    assert stop(engine) == 0


@pytest.mark.parametrize("broken", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_engine_does_not_start_on_a_torn_folder(tmp_path, broken):
    """It says which file and ends."""
    model = tmp_path / "model"
    write_model(model, seed=0)
    os.truncate(model / broken, 100)
    write_config(tmp_path / "engine.json", dataclasses.replace(config(model), workers=1))
    command = [sys.executable, "-m", "engine", "--config", str(tmp_path / "engine.json")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{model / broken}: " in result.stderr
    assert "Traceback" not in result.stderr
