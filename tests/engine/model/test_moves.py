"""Blocks of real K/V between device, host and disk: bit by bit what they were (ENGINE E45)."""

from array import array
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine import messages as m  # noqa: E402
from engine.config import (  # noqa: E402
    AdmissionConfig,
    CacheConfig,
    DiskConfig,
    EngineConfig,
    MemoryConfig,
    SchedulerConfig,
    TiersConfig,
)
from engine.kv.blocks import block_digests  # noqa: E402
from engine.kv.disk import MARKER, DiskStore  # noqa: E402
from engine.model import ModelError, check  # noqa: E402
from engine.model.decoder import Decoder  # noqa: E402
from engine.model.host_memory import HostMemory  # noqa: E402
from engine.model.kv_memory import KvMemory  # noqa: E402
from engine.model.loader import load_runner  # noqa: E402
from engine.model.weights import random_tensors  # noqa: E402
from engine.process import build  # noqa: E402
from engine.request import Finish, Request, Sampling  # noqa: E402
from engine.runner.base import Move, Transfer  # noqa: E402
from engine.runner.moves import Mover  # noqa: E402
from engine.runner.torch_runner import TorchRunner  # noqa: E402
from engine.worker import Worker  # noqa: E402
from tests.engine.said import apart  # noqa: E402

pytestmark = pytest.mark.torch
ROOT, KEY = b"r" * 16, b"k" * 16


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def memory(request):
    made = KvMemory(3, 2, 8, 6, 4, request.param)
    noise = torch.Generator().manual_seed(1)
    for layer in range(3):
        k, v = (torch.randn(28, 2, 8, generator=noise).to(request.param) for _ in range(2))
        made.write(layer, torch.arange(28), k, v)
    return made


@pytest.fixture
def disk(tmp_path):
    store = DiskStore(tmp_path / "tier", "test", lambda: 0.0)
    yield store
    store.close()


def bits(memory, block):
    return memory.block(block).contiguous().view(torch.uint8).clone()


def test_every_place_keeps_every_bit(memory, disk):
    """Saved, spilled, fetched into another slot, loaded into another block, copied: the same bits; blocks
    beside them are untouched."""
    mover = Mover(memory, HostMemory(memory, 3), disk)
    before = [bits(memory, block) for block in range(7)]
    steps = (
        Transfer(Move.SAVE, 2, 1),
        Transfer(Move.SPILL, 1, key=KEY, root=ROOT),
        Transfer(Move.SAVE, 3, 1),
        Transfer(Move.FETCH, target=3, key=KEY, root=ROOT),
        Transfer(Move.LOAD, 3, 5),
        Transfer(Move.LOAD, 1, 4),
        Transfer(Move.COPY, 5, 6),
    )
    assert mover.carry_out(steps)[0] == ()
    for block, source in enumerate((0, 1, 2, 3, 3, 2, 2)):
        assert torch.equal(bits(memory, block), before[source])


def test_what_cannot_move_is_told(memory, disk):
    """A block that is not on disk, or no more, or of another root; without a disk nothing goes there."""
    host = HostMemory(memory, 2)
    spill = Transfer(Move.SPILL, 1, key=KEY, root=ROOT)
    fetch = Transfer(Move.FETCH, target=2, key=KEY, root=ROOT)
    drop, foreign = Transfer(Move.DROP, key=KEY), replace(fetch, root=b"x" * 16)
    assert Mover(memory, host, disk).carry_out((fetch, spill, foreign, fetch, drop, fetch))[0] == (0, 2, 5)
    assert Mover(memory, host, None).carry_out((spill, fetch))[0] == (0, 1)


class Served:
    """A worker with a real model, stepped until all requests have ended."""

    def __init__(self, config, model, disk=None):
        self.runner = TorchRunner(model, frozenset(), disk=disk)
        self.config = config
        self.worker = Worker(
            config,
            0,
            "w",
            eos_ids=frozenset(),
            max_positions=256,
            vocabulary=300,
            kv_bytes_per_token=self.runner.kv_bytes_per_token,
        )
        self.runner.allocate(config.memory.kv_blocks, 4, self.worker.cache.below.sizes.slots)
        self.now, self.texts, self.done, self.moved = 0, {}, {}, set()

    def serve(self, *prompts, out_max=8):
        for prompt in prompts:
            tokens = array("I", prompt)
            id = len(self.texts) + 1
            self.texts[id] = []
            digests = block_digests(ROOT, tokens, 4)
            sampling = Sampling(ignore_eos=True)
            self.worker.receive(m.Submit(Request(id, tokens, ROOT, digests, out_max, sampling=sampling)), 0)
        while (plan := self.worker.plan(self.now)) is not None:
            self.moved |= {move.move for move in plan.transfers}
            self.now += 1_000_000
            self.worker.commit(plan, self.runner.execute(plan), self.now)
            for message in apart(self.worker.take_outbox()):
                if isinstance(message, m.TokensOut):
                    self.texts[message.id] += message.ids
                elif isinstance(message, m.Done):
                    assert message.reason is Finish.LENGTH
                    self.done[message.id] = message.truth
        assert self.worker.audit()["violations"] == []
        return list(self.texts.values())[-len(prompts) :]


def prompt(seed, length=33):
    return [(seed * 41 + 7 * index + index * index) % 250 for index in range(length)]


@pytest.fixture
def model(small_config):
    untied = replace(small_config, tied=False)
    return Decoder(untied, random_tensors(untied, 0))


@pytest.fixture
def config():
    return EngineConfig(
        memory=MemoryConfig(kv_blocks=12, block_size=4),
        scheduler=SchedulerConfig(max_step_tokens=64, prefill_chunk=64),
    )


def tiers(model, host, disk=0, swap=0):
    size = 4 * model.config.kv_bytes_per_token(4)
    folder = DiskConfig("/unused", disk * size) if disk else None
    return TiersConfig(host=host * size or None, disk=folder, swap=swap * size, in_flight=1 << 30)


@pytest.mark.parametrize(("host", "files"), [(60, 0), (9, 60)], ids=["host", "disk"])
def test_restored_is_as_computed(model, config, disk, host, files):
    """Prompts that come back from host or disk say what they say cold, token by token."""
    cold = Served(config, model).serve(prompt(1))
    cache = replace(config.cache, tiers=tiers(model, host, files))
    served = Served(replace(config, cache=cache), model, disk)
    served.serve(prompt(1)), served.serve(prompt(2)), served.serve(prompt(3))
    assert served.serve(prompt(1)) == cold
    truth = list(served.done.values())[-1]
    assert truth.hit_disk > 0 if files else truth.hit_host > 0
    assert truth.computed < 9


def test_a_torn_file_is_computed(model, config, disk):
    """A file that was cut while nobody looked costs time and changes no text."""
    cold = Served(config, model).serve(prompt(1))
    cache = replace(config.cache, tiers=tiers(model, 9, 60))
    served = Served(replace(config, cache=cache), model, disk)
    served.serve(prompt(1)), served.serve(prompt(2)), served.serve(prompt(3))
    for path in disk.folder.glob("*.kv"):
        path.write_bytes(path.read_bytes()[:-1])
    assert served.serve(prompt(1)) == cold
    assert list(served.done.values())[-1].hit_disk == 0


def test_swapped_out_and_in(model, config):
    """Two answers that outgrow the pool, one of them moved out and back, are those that each gives alone."""
    alone = [Served(config, model).serve(prompt(seed, 14), out_max=24)[0] for seed in (1, 2)]
    crowded = replace(
        config,
        admission=AdmissionConfig(policy="prompt"),
        preemption="swap",
        cache=CacheConfig(tiers=tiers(model, 0, swap=20)),
    )
    served = Served(crowded, model)
    assert served.serve(prompt(1, 14), prompt(2, 14), out_max=24) == alone
    assert {Move.SAVE, Move.LOAD} <= served.moved
    assert sum(truth.recomputed for truth in served.done.values()) == 0


@pytest.fixture
def tiered(tmp_path):
    """The tiny model with every tier, in a folder that is not there yet."""
    cache = CacheConfig(
        tiers=TiersConfig(host=1_000_000, swap=100_000, disk=DiskConfig(str(tmp_path / "d"), 1_000_000))
    )
    return EngineConfig(
        model="tiny", dtype="fp32", memory=MemoryConfig(kv_blocks=64), cache=cache, preemption="swap"
    )


def test_each_worker_has_a_folder_of_its_own(tiered, tmp_path):
    """A warmed-up worker begins with empty tiers of the configured sizes."""
    worker, runner = build(tiered, 3, 1)
    size = 16 * runner.kv_bytes_per_token
    sizes = worker.cache.below.sizes
    assert (sizes.host, sizes.swap, sizes.disk) == (1_000_000 // size, 100_000 // size, 1_000_000 // size)
    assert [path.name for path in (tmp_path / "d" / "worker-3").iterdir()] == [MARKER]
    assert not worker.cache.below.entries


def test_a_folder_that_is_not_ours_is_said(tiered, tmp_path):
    """The worker does not start, and the message names the key and the file."""
    (tmp_path / "d" / "worker-0").mkdir(parents=True)
    (tmp_path / "d" / "worker-0" / "thesis.tex").write_text("")
    with pytest.raises(ModelError, match=r"cache\.tiers\.disk\.path.*thesis\.tex"):
        load_runner(tiered)


def test_a_tier_too_small_for_a_block_is_said(tiered):
    """Bytes that hold no block are no tier; it is found before anything is loaded."""
    cache = replace(tiered.cache, tiers=TiersConfig(host=100))
    with pytest.raises(ModelError, match=r"cache\.tiers\.host 100 is less than one block"):
        check(replace(tiered, cache=cache, preemption="recompute"))
    check(tiered)
