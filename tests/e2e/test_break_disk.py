"""A disk tier that is told to fail under a real worker process and a real model (JOINTS 8, ENGINE E45)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import CacheConfig, ClassConfig, DiskConfig, EngineConfig, MemoryConfig, TiersConfig
from engine.model import kv_bytes_per_token
from tests.e2e.test_engine_processes import Engine, start, stop, until

pytestmark = pytest.mark.e2e

BLOCK = 16 * kv_bytes_per_token(EngineConfig(model="tiny"))
Tiered = tuple[Engine, Path]
"""The engine, and the folder of its worker's blocks."""


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    folder = tmp_path_factory.mktemp("disk")
    disk = DiskConfig(str(folder / "tier"), 500 * BLOCK)
    config = EngineConfig(
        model="tiny",
        memory=MemoryConfig(kv_blocks=48),
        cache=CacheConfig(tiers=TiersConfig(host=16 * BLOCK, disk=disk)),
        classes={"default": ClassConfig(max_input=700, default_output=8)},
    )
    engine = start(folder, config)
    yield engine, folder / "tier" / "worker-0"
    assert stop(engine) == 0


def texts(engine: Engine) -> list[str]:
    """The answers to six prompts of 600 tokens, one after the other; the device holds one of them."""
    said = []
    for number in range(6):
        body = {"model": "tiny", "prompt": f"{number:03d} " * 150, "max_tokens": 4, "temperature": 0}
        answer = engine.public.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        said.append(answer.json()["choices"][0]["text"])
    return said


def tier(engine: Engine, disk: str | None) -> None:
    assert engine.admin.post("/admin/tier", json={"disk": disk}).json() == {}


def disk_of(engine: Engine) -> dict[str, Any]:
    disk: dict[str, Any] = engine.workers()[0]["disk"]
    return disk


def from_disk(engine: Engine) -> int:
    """Prompt tokens read from disk so far, by truth."""
    rows = engine.admin.get("/admin/truth").text.splitlines()
    return sum(json.loads(row)["hit_disk"] for row in rows)


def test_full_then_corrupt_then_whole(tiered: Tiered) -> None:
    """Full: no file appears and spills are counted as lost. Corrupt: what is read fails its checksum, is
    counted and computed again, with the same text. Healed: it serves."""
    engine, folder = tiered

    def spilled() -> bool:
        texts(engine)
        return any(folder.glob("*.kv"))

    tier(engine, "full")
    cold = texts(engine)
    until(lambda: disk_of(engine)["spills_lost"] > 0)
    assert disk_of(engine)["fault"] == "full"
    assert not any(folder.glob("*.kv*"))
    tier(engine, None)
    until(spilled)
    before = from_disk(engine)
    tier(engine, "corrupt")
    assert texts(engine) == cold
    until(lambda: disk_of(engine)["fetches_lost"] > 0)
    assert from_disk(engine) == before
    tier(engine, None)
    until(spilled)
    until(lambda: texts(engine) == cold and from_disk(engine) > before)
    assert disk_of(engine)["fault"] is None
    assert engine.broken_invariants() == []
