"""What must hold, whatever is asked: a clear 4xx or 5xx with the numbers, and the next request is served.

Each test sends something that cannot be served through the whole engine in virtual time (HTTP interface,
gateway, worker, simulated runner), looks at the answer, and then asks for something ordinary.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config import CacheConfig, DiskConfig, EngineConfig, MemoryConfig, QueueConfig, TiersConfig
from tests.engine.fleet.world import config
from tests.engine.whole import Whole, engine

POOL = 16
TIGHT = config(workers=1, memory=MemoryConfig(kv_blocks=POOL, block_size=16))


def one(status: int, *words: str, body: Any, **headers: str) -> None:
    """A single request that is refused."""
    engine(lambda whole: whole.refuses(status, *words, body=body, **headers), TIGHT)


def test_larger_than_the_pool() -> None:
    """C1: 400 with the blocks that are needed and those that there are."""
    one(400, "26 blocks", "16 are usable", body={"prompt": "x" * 400, "max_tokens": 4})
    one(400, "max_tokens 300", "16 are usable", body={"prompt": "x" * 10, "max_tokens": 300})
    one(400, "16 are usable", body={"prompt": "x" * 120, "max_tokens": 60, "n": 4})


def test_an_empty_prompt() -> None:
    """400 by name, as text, as ids and as no messages."""
    for prompt in ("", [], [[]]):
        one(400, "prompt", body={"prompt": prompt, "max_tokens": 4})


def test_max_tokens_0() -> None:
    """400, not an empty answer."""
    one(400, "max_tokens", body={"prompt": "hi", "max_tokens": 0})


def test_a_stop_list_of_a_megabyte() -> None:
    """400 with the limit, whether it is many strings or one."""
    one(400, "stop", "16", body={"prompt": "hi", "stop": ["x" * 10] * 100_000})
    one(400, "stop", "1024", body={"prompt": "hi", "stop": "x" * 1_000_000})
    one(400, "stop_token_ids", "128", body={"prompt": "hi", "stop_token_ids": list(range(200_000))})


@pytest.mark.parametrize(
    "body",
    [b'{"model": "simulated", "prompt": "\xff\xfe"}', b"\xc3", b"\xed\xa0\x80", b'{"prompt": "\xc3\x28"}'],
)
def test_invalid_utf_8(body: bytes) -> None:
    """A body that is no text is no JSON: 400."""
    one(400, "JSON", body=body)


def test_a_lone_surrogate() -> None:
    """Valid JSON that stands for no text: 400."""
    one(400, body=b'{"model": "simulated", "prompt": "\\ud83d", "max_tokens": 2}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "string", "minLength": 9, "maxLength": 2},
        {"$ref": "#/nowhere"},
        {"type": "object", "properties": 7},
    ],
    ids=["type", "enum", "range", "length", "ref", "shape"],
)
def test_a_schema_that_cannot_be_met(schema: dict[str, Any]) -> None:
    """400 before anything runs."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    one(400, body={"prompt": "hi", "max_tokens": 20, "response_format": form})


def test_ten_thousand_at_once() -> None:
    """The queue takes what it can hold; the others get 429 with Retry-After; everybody is answered."""
    roomy = config(
        workers=1, memory=MemoryConfig(kv_blocks=200, block_size=16), queue=QueueConfig(max_requests=500)
    )

    async def body(whole: Whole) -> None:
        sinks = [
            whole.send({"prompt": f"number {i}", "max_tokens": 3, "ignore_eos": True}) for i in range(10_000)
        ]
        await whole.world.quiet()
        assert all(sink.ended for sink in sinks)
        statuses = [sink.status for sink in sinks]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 500
        for sink in sinks:
            if sink.status == 429:
                assert 1 <= int(sink.headers["Retry-After"]) <= 60
                assert "500" in sink.json["error"]["message"]

    engine(body, roomy)


def test_a_model_folder_that_vanishes() -> None:
    """A worker that dies then cannot come back: 503 with Retry-After until the folder is there again."""

    async def body(whole: Whole) -> None:
        pool, gone = whole.world.pool, True
        make = pool.make_runner

        def load(worker: int) -> Any:
            if gone:
                raise FileNotFoundError("the model's folder is gone")
            return make(worker)

        pool.make_runner = load
        await whole.world.fleet.kill(0)
        await asyncio.sleep(3.0)
        await whole.refuses(503, "no worker", body={"prompt": "hi", "max_tokens": 2})
        gone = False
        await asyncio.sleep(5.0)

    engine(body, TIGHT)


def tiered(folder: Path, size: int = 1 << 20) -> EngineConfig:
    """Blocks go from 16 of the device to two of the host to the disk."""
    disk = DiskConfig(str(folder), size)
    tiers = TiersConfig(host=1 << 16, disk=disk)
    return dataclasses.replace(TIGHT, cache=CacheConfig(tiers=tiers))


async def churn(whole: Whole, rounds: int = 3) -> list[str]:
    """Long prompts in turn, more than the device holds; returns the text of each, round by round."""
    said = []
    for _ in range(rounds):
        for letter in "abcdefgh":
            sink = await whole.answer({"prompt": letter * 150, "max_tokens": 3, "ignore_eos": True})
            assert sink.status == 200, sink.body
            said.append(sink.json["choices"][0]["text"])
    assert said[:8] * rounds == said
    return said


def test_a_full_disk_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be written below: every request is served as if the tier were not there."""

    async def body(whole: Whole) -> None:
        await churn(whole)

    engine(body, tiered(tmp_path, size=1))


def test_torn_tier_files(tmp_path: Path) -> None:
    """Whatever becomes of the files, a bad block is a miss and no text changes."""

    async def body(whole: Whole) -> None:
        await churn(whole, 1)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files, "blocks went to disk"
        for index, path in enumerate(files):
            data = path.read_bytes()
            if index % 3 == 0:
                path.write_bytes(data[: len(data) // 2])
            elif index % 3 == 1:
                path.write_bytes(bytes([data[0] ^ 1]) + data[1:] if data else b"x")
            else:
                path.unlink()
        await churn(whole, 2)

    engine(body, tiered(tmp_path))


def test_a_disk_tier_that_vanishes(tmp_path: Path) -> None:
    """The folder is gone while the engine runs."""
    folder = tmp_path / "tier"

    async def body(whole: Whole) -> None:
        await churn(whole, 1)
        shutil.rmtree(folder, ignore_errors=True)
        await churn(whole, 2)

    engine(body, tiered(folder))
