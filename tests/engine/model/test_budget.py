"""A worker's memory: what the table counts, what does not fit, and that it is what is really taken (E10)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CacheConfig, ClassConfig, DiskConfig, EngineConfig, MemoryConfig, TiersConfig
from engine.kv.places import Sizes
from engine.model import (
    ModelError,
    admit_adapter,
    budget,
    check,
    kv_bytes_per_token,
    load_runner,
    read_adapter,
    short_of,
)
from engine.model.decoder_config import TINY
from engine.model.peft_folder import most_weights
from engine.model.weights import expected_shapes
from tests.engine import lora_folders
from tests.engine.fleet.world import VirtualFleet

PLAIN = EngineConfig(model="tiny", dtype="fp32", max_adapters=2)
BLOCK = 16 * kv_bytes_per_token(PLAIN)
MB = 1_000_000
MODULE = "engine.model.memory.machine_memory"


def tiers(host: int = 0, swap: int = 0, disk: int = 0) -> CacheConfig:
    """In blocks."""
    below = DiskConfig("/unused", disk * BLOCK) if disk else None
    return CacheConfig(tiers=TiersConfig(host=host * BLOCK or None, swap=swap * BLOCK, disk=below))


def sized(total: int | None = None, kv_blocks: int | None = None, **more: object) -> EngineConfig:
    return replace(PLAIN, memory=MemoryConfig(total=total, kv_blocks=kv_blocks), **more)  # type: ignore[arg-type]


def test_host_copies_and_swap_come_out_of_the_same_memory() -> None:
    """KV gets as much less as they take; the disk takes none of it."""
    without = budget(sized(4 * MB))
    beside = budget(sized(4 * MB, cache=tiers(host=100, swap=50, disk=9999)))
    assert (beside.host, beside.swap) == (100 * BLOCK, 50 * BLOCK)
    assert without.blocks - beside.blocks == 150
    assert beside.limit == 4 * MB
    assert 4 * MB - BLOCK < beside.used <= 4 * MB


def test_a_host_tier_that_leaves_no_block_is_refused_with_the_table() -> None:
    """At start, before anything is loaded; every part is named with its size."""
    with pytest.raises(ModelError) as refused:
        check(sized(4 * MB, cache=tiers(host=875)))
    said = str(refused.value)
    assert "MB of host copies and no KV block" in said
    for part in (
        "weights",
        "adapters",
        "host copies of blocks",
        "swap",
        "KV, 1 blocks",
        "in all",
        "memory.total",
    ):
        assert part in said
    assert f"{TINY.parameters * 4 / 1e6:,.1f} MB" in said


def test_blocks_that_are_asked_for_must_fit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what memory.total says; without it, of all that the machine has, shared by the workers."""
    assert budget(sized(4 * MB, 400)).blocks == 400
    with pytest.raises(ModelError, match=r"more memory than there is(.|\n)*KV, 1000 blocks"):
        budget(sized(4 * MB, 1000))
    monkeypatch.setattr(MODULE, lambda: 9 * MB)
    assert budget(sized(kv_blocks=1000)).limit == 9 * MB
    with pytest.raises(ModelError, match="this machine's, by workers"):
        budget(sized(kv_blocks=1000, workers=2))
    with pytest.raises(ModelError, match="more memory than there is"):
        budget(sized(kv_blocks=1000, cache=tiers(host=1000)))


def test_by_default_there_is_room_for_adapters_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """For max_adapters of the largest that would be accepted, at most an eighth of what is left."""
    most = most_weights(expected_shapes(TINY), PLAIN.max_lora_rank)
    monkeypatch.setattr(MODULE, lambda: 1 << 40)
    assert budget(PLAIN).adapters == 2 * most * 4
    monkeypatch.setattr(MODULE, lambda: 8 * MB)
    small = budget(PLAIN)
    assert small.adapters == (4 * MB - small.weights) // 8 < 2 * most * 4
    assert small.fits
    assert budget(sized(4 * MB)).adapters == 0


def test_an_adapter_at_start_keeps_room_for_as_many_as_may_be_resident(tmp_path: Path) -> None:
    """Those that come later are expected to be of the size of the largest."""
    folder = str(lora_folders.adapter(tmp_path / "one", rank=8))
    weights = read_adapter(PLAIN, folder).weights
    assert budget(sized(4 * MB, adapters={"one": folder})).adapters == 2 * weights * 4


@given(
    total=st.one_of(st.none(), st.integers(1, 64 * MB)),
    machine=st.integers(1, 256 * MB),
    workers=st.integers(1, 4),
    blocks=st.one_of(st.none(), st.integers(1, 4000)),
    host=st.integers(0, 3000),
    swap=st.integers(0, 3000),
    rank=st.integers(1, 64),
)
def test_what_is_planned_fits_or_is_refused(
    total: int | None, machine: int, workers: int, blocks: int | None, host: int, swap: int, rank: int
) -> None:
    """Whatever is asked for: the parts are within the limit and there is at least one block, or a ModelError
    carries the table."""
    config = sized(total, blocks, workers=workers, cache=tiers(host, swap), max_lora_rank=rank)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, lambda: machine)
        try:
            plan = budget(config)
        except ModelError as error:
            refused = str(error)
        else:
            refused = ""
    if refused:
        assert "in all" in refused
        return
    assert plan.limit is not None
    assert plan.used <= plan.limit <= (total or machine // workers)
    assert plan.blocks >= 1
    assert plan.host == host * BLOCK
    assert plan.kv == (plan.blocks + 1) * BLOCK
    assert blocks in (None, plan.blocks)


def test_a_warning_names_a_pool_that_holds_less_than_two_requests() -> None:
    """By the largest total that a class allows."""
    config = replace(PLAIN, classes={"a": ClassConfig(max_total=900), "b": ClassConfig(max_input=500)})
    assert short_of(config, 200) is None
    assert "1600 tokens, less than two of the largest requests (900 tokens each)" in (
        short_of(config, 100) or ""
    )


@pytest.mark.torch
def test_the_table_is_what_is_taken(tmp_path: Path) -> None:
    """KV and host tensors have exactly the bytes of the plan, and so has a resident adapter."""
    pytest.importorskip("torch")
    from engine.model.lora import load

    config = sized(4 * MB, cache=tiers(host=40, swap=20))
    plan, runner = budget(config), load_runner(config)
    runner.allocate(plan.blocks, 16, Sizes.of(config.cache.tiers, BLOCK).slots)
    assert runner.kv_bytes == plan.kv  # type: ignore[attr-defined]
    host = runner._mover._host._slots  # type: ignore[attr-defined]
    assert host.nbytes == plan.host + plan.swap
    facts = read_adapter(config, str(lora_folders.adapter(tmp_path / "all", rank=64)))
    import torch

    lora = load(facts.folder, facts.digest, TINY, torch.float32)
    taken = sum(delta.a.nbytes + delta.b.nbytes for delta in lora._deltas.values())
    assert taken == facts.weights * 4 == most_weights(expected_shapes(TINY), 64) * 4


def test_an_adapter_that_finds_no_room_is_refused_with_the_table(tmp_path: Path) -> None:
    """What is there stays, one that is smaller is taken, and none is counted twice."""
    paths = {rank: str(lora_folders.adapter(tmp_path / f"r{rank}", rank=rank)) for rank in (2, 4, 64)}
    size = {rank: read_adapter(PLAIN, path).weights * 4 for rank, path in paths.items()}
    kv = 500
    room = TINY.parameters * 4 + (kv + 1) * BLOCK + size[2] + size[4]

    async def main() -> None:
        fleet = VirtualFleet(sized(room, kv), lambda: 0).fleet
        await fleet.load_adapter("small", paths[2])
        with pytest.raises(
            ModelError, match=r"adapter 'large' does not fit(.|\n)*adapters(.|\n)*memory\.total"
        ):
            await fleet.load_adapter("large", paths[64])
        assert fleet.adapters() == ("small",)
        await fleet.load_adapter("again", paths[2])
        await fleet.load_adapter("middle", paths[4])
        await fleet.load_adapter("small", paths[4])
        await fleet.unload_adapter("small")

    asyncio.run(main())


def test_what_is_said_to_make_room_for_an_adapter_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are to be unloaded only if there are any, and memory.total and memory.kv_blocks exclude each
    other in a scenario."""
    monkeypatch.setattr(MODULE, lambda: 16 * MB)
    path = str(lora_folders.adapter(tmp_path / "a", rank=64))
    weights = read_adapter(PLAIN, path).weights
    by_total = sized(4 * MB)
    held = budget(by_total).blocks
    with pytest.raises(ModelError, match="room for max_adapters of its size") as refused:
        admit_adapter(by_total, [weights], "a")
    assert f"set memory.kv_blocks in place of memory.total to fewer than {held}, or" in str(refused.value)
    assert "unload" not in str(refused.value)
    admit_adapter(sized(kv_blocks=held // 2), [weights], "a")
    admit_adapter(sized(4 * MB, adapters={"a": path}), [weights], "a")
    by_blocks = sized(kv_blocks=(16 * MB - TINY.parameters * 4) // BLOCK - 2)
    with pytest.raises(ModelError, match=r"unload others, set memory\.kv_blocks to fewer than"):
        admit_adapter(by_blocks, [weights, weights], "b")


def test_two_adapters_at_once_do_not_share_one_place(tmp_path: Path) -> None:
    """The second is judged when the first has its place."""
    paths = [str(lora_folders.adapter(tmp_path / f"s{seed}", seed)) for seed in range(2)]
    size = read_adapter(PLAIN, paths[0]).weights * 4

    async def main() -> list[Any]:
        room = TINY.parameters * 4 + 501 * BLOCK + size
        fleet = VirtualFleet(sized(room, 500), lambda: 0).fleet
        fleet._executor = reading
        loading = (fleet.load_adapter(f"a{i}", path) for i, path in enumerate(paths))
        ended: list[Any] = await asyncio.gather(*loading, return_exceptions=True)
        return ended

    with ThreadPoolExecutor(1) as reading:
        ended = asyncio.run(main())
    assert [isinstance(end, ModelError) for end in ended] == [False, True]
