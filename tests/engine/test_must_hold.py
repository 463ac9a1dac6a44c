"""What must hold, whatever is asked: a clear 4xx or 5xx with the numbers, and the next request is served.

Each test sends something that cannot be served through the whole engine in virtual time (HTTP interface,
gateway, worker, simulated runner), looks at the answer, and then asks for something ordinary.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import Any

import pytest

from engine.config import CacheConfig, DiskConfig, MemoryConfig, QueueConfig, TiersConfig
from engine.runner.base import Move, Transfer
from engine.runner.simulated import KV_BYTES
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


def test_larger_than_the_bound_of_the_queue() -> None:
    """Served when nobody waits: it would be told to come again for ever. The next one has to wait outside."""

    async def body(whole: Whole) -> None:
        long = {"prompt": "x" * 60, "max_tokens": 4, "ignore_eos": True}
        running, waiting = whole.send(long), whole.send(long)
        refused = whole.send(long)
        await whole.world.quiet()
        assert (running.status, waiting.status, refused.status) == (200, 200, 429), refused.body

    few = dataclasses.replace(TIGHT.router, max_dispatched=1)
    engine(body, dataclasses.replace(TIGHT, queue=QueueConfig(max_tokens=40), router=few))


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


BLOCK_BYTES = KV_BYTES * 16
TIERED = dataclasses.replace(
    TIGHT,
    cache=CacheConfig(
        tiers=TiersConfig(host=4 * BLOCK_BYTES, disk=DiskConfig("/nowhere", 200 * BLOCK_BYTES)),
    ),
)
"""Blocks go from 16 of the device to four of the host to the disk."""


@pytest.mark.parametrize(
    "broken",
    [{Move.SPILL}, {Move.FETCH}, {Move.SPILL, Move.FETCH}, {Move.SAVE}, {Move.LOAD}],
    ids=["full", "torn", "gone", "save", "load"],
)
@pytest.mark.parametrize("share", [1, 3])
def test_a_tier_that_does_not_work(broken: set[Move], share: int) -> None:
    """A full disk, a torn file, a folder that is gone, in the middle of work and always or every third time:
    every request gets the text that it gets without tiers, and nothing is left."""

    async def body(whole: Whole) -> None:
        first = await _churn(whole)
        (runner,) = whole.runners
        moves: Counter[Move] = Counter()

        def fails(move: Transfer) -> bool:
            moves[move.move] += move.move in broken
            return move.move in broken and moves[move.move] % share == 0

        runner.fails = fails
        for _ in range(3):
            assert await _churn(whole) == first
        assert moves, "it was tried"
        runner.fails = None
        assert await _churn(whole) == first

    engine(body, TIERED)


async def _churn(whole: Whole) -> list[str]:
    """Prompts in turn, more than the device holds, several at a time; returns the text of each."""
    said = []
    for letters in ("ab", "cd", "ef", "gh"):
        body = {"max_tokens": 3, "ignore_eos": True}
        sinks = [whole.send({"prompt": letter * 110, **body}) for letter in letters]
        await whole.world.quiet()
        assert [sink.status for sink in sinks] == [200, 200]
        said += [sink.json["choices"][0]["text"] for sink in sinks]
    return said
