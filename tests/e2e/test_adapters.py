"""LoRA adapters on a real engine: loaded at start and at run time, kept over a worker's death, taken away."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from engine.config import EngineConfig, HealthConfig, MemoryConfig
from tests.e2e.test_engine_processes import Engine, start, stop, until
from tests.engine import lora_folders

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


def complete(engine: Engine, model: str) -> Any:
    """The ids of a greedy answer, or the error."""
    body = {
        "model": model,
        "prompt": "SELECT name FROM users WHERE id = 7 AND",
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = engine.public.post("/v1/completions", json=body)
    data = answer.json()
    if answer.status_code != 200:
        return answer.status_code, data["error"]
    return data["choices"][0]["token_ids"]


def test_the_life_of_adapters(tmp_path):
    """Each name gives its own text; what is registered survives a kill; what is gone is a 404."""
    folders = {name: lora_folders.adapter(tmp_path / name, seed) for seed, name in enumerate(("sql", "chat"))}
    config = EngineConfig(
        model="tiny",
        dtype="fp32",
        memory=MemoryConfig(kv_blocks=64),
        adapters={"sql": str(folders["sql"])},
        max_adapters=1,
        health=HealthConfig(restart_backoff=0.05),
    )
    engine = start(tmp_path, config)
    try:
        loaded = engine.admin.post("/admin/adapters/chat", json={"path": str(folders["chat"])}).json()
        assert (loaded["name"], loaded["rank"], len(loaded["digest"])) == ("chat", 4, 32)
        listed = engine.public.get("/v1/models").json()["data"]
        assert [model["id"] for model in listed] == ["tiny", "sql", "chat"]
        texts = {name: complete(engine, name) for name in ("tiny", "sql", "chat")}
        assert len({tuple(text) for text in texts.values()}) == 3
        assert {name: complete(engine, name) for name in reversed(texts)} == texts

        (worker,) = engine.workers()
        engine.admin.post("/admin/workers/0/kill")
        until(lambda: engine.workers()[0]["pid"] not in (worker["pid"], None), 30)
        until(lambda: engine.workers()[0]["state"] == "in_rotation", 30)
        assert {name: complete(engine, name) for name in texts} == texts

        lora_folders.adapter(tmp_path / "broken", use_dora=True)
        refused = engine.admin.post("/admin/adapters/sql", json={"path": str(tmp_path / "broken")})
        assert refused.status_code == 400
        assert "use_dora is true" in refused.json()["error"]["message"]
        assert complete(engine, "sql") == texts["sql"]

        engine.admin.post("/admin/adapters/sql", json={"path": str(folders["chat"])}).raise_for_status()
        assert complete(engine, "sql") == texts["chat"]
        engine.admin.delete("/admin/adapters/chat").raise_for_status()
        status, error = complete(engine, "chat")
        assert (status, error["code"]) == (404, "model_not_found")
        assert "'sql'" in error["message"]
        assert complete(engine, "sql") == texts["chat"]
        assert complete(engine, "tiny") == texts["tiny"]
        assert not engine.broken_invariants()
    finally:
        code = stop(engine)
    assert code == 0


def test_an_adapter_that_cannot_be_served_keeps_the_engine_from_starting(tmp_path):
    """With its file and what is wrong in it."""
    folder = lora_folders.adapter(tmp_path / "sql", rank=65)
    config = EngineConfig(model="tiny", memory=MemoryConfig(kv_blocks=8), adapters={"sql": str(folder)})
    with pytest.raises(AssertionError, match=r"model\.safetensors: .* has rank 65, max_lora_rank is 64"):
        start(tmp_path, config)
