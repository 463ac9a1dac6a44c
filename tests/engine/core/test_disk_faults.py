"""A disk tier that is told to fail: what a full or lying disk does to files and books (FLEET 9, E45)."""

from __future__ import annotations

import logging

import pytest

from engine.kv.disk import DiskStore, break_disk
from engine.messages import BreakDisk, DiskFault
from engine.request import Finish, MissReason
from engine.runner.base import Move
from engine.wire import Frames, encode
from tests.engine.core.test_tiers import hits, reasons

ROOT, DIGEST = b"r" * 16, bytes(range(16))
DATA = bytes(range(256)) * 8


@pytest.fixture
def store(tmp_path):
    made = DiskStore(tmp_path / "tier", "a model", lambda: 0.0)
    yield made
    made.close()


def read(store):
    into = bytearray(len(DATA))
    return bytes(into) if store.read(ROOT, DIGEST, memoryview(into)) else None


def test_a_full_disk_writes_nothing_and_says_so(store, caplog):
    """What was there is read on; a new copy is refused and leaves nothing; healed, it is kept again."""
    other = bytes(16)
    assert store.write(ROOT, other, memoryview(DATA))
    store.fault = DiskFault.FULL
    with caplog.at_level(logging.WARNING):
        assert not store.write(ROOT, DIGEST, memoryview(DATA))
    assert "No space left on device" in caplog.text
    assert sorted(path.suffix for path in store.folder.glob("*.kv*")) == [".kv"]
    assert store.read(ROOT, other, memoryview(bytearray(len(DATA))))
    store.fault = None
    assert store.write(ROOT, DIGEST, memoryview(DATA))
    assert read(store) == DATA


def test_a_corrupt_disk_is_caught_by_the_checksum_alone(store):
    """The file is whole and its header right: one wrong bit in what is read is enough. Healed, it reads."""
    assert store.write(ROOT, DIGEST, memoryview(DATA))
    store.fault = DiskFault.CORRUPT
    into = bytearray(len(DATA))
    assert not store.read(ROOT, DIGEST, memoryview(into))
    assert sum(a != b for a, b in zip(into, DATA, strict=True)) == 1
    store.fault = None
    assert read(store) == DATA


def test_a_runner_without_a_disk_says_that_there_is_none(caplog):
    """The message can only come by mistake; the process lives on."""
    break_disk(object(), DiskFault.FULL)
    assert "no disk to break" in caplog.text


@pytest.mark.parametrize("fault", [None, *DiskFault])
def test_the_message_travels(fault):
    """As msgpack, and back to the same value."""
    assert Frames().feed(encode(BreakDisk(fault))) == [BreakDisk(fault)]


def spilling(bench, tokens, prompts=3):
    b = bench(blocks=10, host=8, disk=50)
    for seed in range(prompts):
        b.serve(tokens(33, seed=seed), 1)
    return b


def test_spills_to_a_full_disk_are_lost_counted_and_explained(bench, tokens):
    """The blocks are gone to capacity, no tier says that it has them, the text is the same."""
    b = bench(blocks=10, host=8, disk=50)
    b.runner.disk_fault = DiskFault.FULL
    first = b.serve(tokens(33), 1)
    for seed in (1, 2):
        b.serve(tokens(33, seed=seed), 1)
    lost = b.count("failed_moves_total", move="spill")
    assert lost > 0
    assert b.count("evicted_blocks_total", cause="bad", tier="disk") == lost
    assert not b.worker.cache.below.disk
    again = b.serve(tokens(33), 1)
    assert again.truth.hit_disk == 0
    assert reasons(again)[0][0] is MissReason.EVICTED_CAPACITY
    assert sum(hits(again)) + again.truth.computed == 33
    assert b.output[again.id] == b.output[first.id]
    b.taught()
    b.drained()


def test_a_corrupt_disk_costs_the_hit_and_not_the_answer(bench, tokens):
    """Found at the restore: computed again, the bad copies dropped and counted; healed, the disk serves."""
    b = spilling(bench, tokens)
    b.runner.disk_fault = DiskFault.CORRUPT
    done = b.serve(tokens(33), 1)
    assert done.truth.hit_disk == 0
    assert sum(hits(done)) + done.truth.computed == 33
    assert b.count("failed_moves_total", move="fetch") > 0
    b.taught()
    b.runner.disk_fault = None
    for seed in range(3, 6):
        b.serve(tokens(33, seed=seed), 1)
    assert b.serve(tokens(33, seed=3), 1).truth.hit_disk > 0
    b.drained()


def test_a_copy_on_the_device_is_no_move_between_tiers(bench, tokens):
    """Not even when its step fails: what did not happen then has moved nothing to or from a tier."""
    b = bench(blocks=16)
    id = b.submit(tokens(6), 4, n=2)
    b.step()
    assert [transfer.move for transfer in b.begin().transfers] == [Move.COPY]
    b.fail()
    assert b.done[id].reason is Finish.ERROR
    rows = b.worker.meter.snapshot()["headrace_engine_failed_moves_total"]
    assert sorted(rows) == [[["fetch"], 0], [["save"], 0], [["spill"], 0]]
    b.drained()
