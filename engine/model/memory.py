"""How a worker's memory is cut up (ENGINE E10), and what is refused because it does not fit.

On a CPU all of it is this machine's memory: what the model computes with, and the copies of blocks below the
device. Without ``memory.kv_blocks`` the KV blocks get what the rest leaves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import EngineConfig
from engine.kv.blocks import blocks_for
from engine.kv.places import Sizes
from engine.model import loader
from engine.model.decoder_config import DecoderConfig, ModelError
from engine.model.peft_folder import most_weights
from engine.model.weights import expected_shapes

SIMULATED_BLOCKS = 4096
_CPU_SHARE = 0.5
"""Share of this machine's memory that all workers together take unless told otherwise."""
_ADAPTER_SHARE = 1 / 8
"""Where nobody has said how much memory there is, adapters that may come later keep at most this share of
what weights and host copies leave."""
_CONTEXTS = 4
"""The contexts of so many full batches is all that a worker caches unless told otherwise: a tiny model's
block has some KB, and a million of them take longer to make than they are worth."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One worker's memory, in bytes. ``adapters`` is room for those that may be resident together; ``host``
    and ``swap`` the copies below the device; ``kv`` includes the null block. ``limit`` is the most that all
    may take and ``limit_is`` what says so; None for a model that takes no memory."""

    weights: int
    adapters: int
    kv: int
    blocks: int
    host: int = 0
    swap: int = 0
    limit: int | None = None
    limit_is: str = ""

    @property
    def used(self) -> int:
        return self.weights + self.adapters + self.host + self.swap + self.kv

    @property
    def left(self) -> int:
        """Negative if they take more than there is."""
        return 0 if self.limit is None else self.limit - self.used

    @property
    def fits(self) -> bool:
        return self.left >= 0

    def table(self) -> str:
        """For people: a line a part, in MB."""
        parts = {
            "weights": self.weights,
            "adapters": self.adapters,
            "host copies of blocks": self.host,
            "swap": self.swap,
            f"KV, {self.blocks} blocks": self.kv,
            "in all": self.used,
        }
        if self.limit is not None:
            parts[f"there is ({self.limit_is})"] = self.limit
        width = max(len(part) for part in parts)
        return "\n".join(f"  {part:<{width}} {size / 1e6:>12,.1f} MB" for part, size in parts.items())


def budget(config: EngineConfig) -> Budget:
    """What one worker's memory is for. Raises ModelError, with the table, if that is more than there is.

    The limit is ``memory.total``; without it, half of this machine's memory shared by the workers, all of it
    where ``memory.kv_blocks`` says how many there are to be. By default a small model gets no more blocks
    than ``_CONTEXTS`` times the longest context for each request that may run.
    """
    memory, shape = config.memory, loader.shape_of(config)
    if memory.kv_blocks is not None and memory.kv_blocks < 1:
        raise ModelError([f"memory.kv_blocks is {memory.kv_blocks}: a worker needs at least one KV block"])
    if shape is None:
        return Budget(weights=0, adapters=0, kv=0, blocks=memory.kv_blocks or SIMULATED_BLOCKS)
    per_block = memory.block_size * loader.kv_bytes_per_token(config)
    beside = _beside_kv(config, shape, per_block)
    blocks = memory.kv_blocks
    if blocks is None:
        blocks = beside.left // per_block - 1  # one more is made: the null block
        if memory.total is None:
            longest = min(config.max_model_len or shape.max_positions, shape.max_positions)
            useful = _CONTEXTS * config.scheduler.max_running * blocks_for(longest, memory.block_size)
            blocks = min(blocks, useful)
    whole = replace(beside, kv=(blocks + 1) * per_block, blocks=blocks)
    if blocks < 1:
        raise ModelError([_no_block(beside), replace(whole, kv=2 * per_block, blocks=1).table()])
    if not whole.fits:
        raise ModelError(["a worker needs more memory than there is:", whole.table()])
    return whole


def _beside_kv(config: EngineConfig, shape: DecoderConfig, per_block: int) -> Budget:
    """All but the KV blocks."""
    memory, size = config.memory, loader.BYTES[config.dtype]
    if memory.total is not None:
        limit, limit_is = memory.total, "memory.total"
    elif memory.kv_blocks is not None:
        limit, limit_is = machine_memory() // config.workers, "this machine's, by workers"
    else:
        limit = int(_CPU_SHARE * machine_memory() / config.workers)
        limit_is = "half of this machine's, by workers"
    try:
        sizes = Sizes.of(config.cache.tiers, per_block)
    except ValueError as error:
        raise ModelError([str(error)]) from error
    weights, host, swap = shape.parameters * size, sizes.host * per_block, sizes.swap * per_block
    adapters = config.max_adapters * max(_at_start(config), default=0) * size
    if memory.total is None and memory.kv_blocks is None:
        later = config.max_adapters * most_weights(expected_shapes(shape), config.max_lora_rank) * size
        left = max(0, limit - weights - host - swap)
        adapters = max(adapters, min(later, int(_ADAPTER_SHARE * left)))
    return Budget(weights, adapters, 0, 0, host, swap, limit, limit_is)


def _at_start(config: EngineConfig) -> Iterable[int]:
    """Numbers in each of the adapters loaded at start. One that is gone by now takes no memory: its requests
    are told why (E39), and a worker that starts again is not kept from it."""
    for folder in config.adapters.values():
        with suppress(ModelError):
            yield loader.read_adapter(config, folder).weights


def _no_block(beside: Budget) -> str:
    parts = {"weights": beside.weights, "adapters": beside.adapters, "host copies": beside.host + beside.swap}
    held = " and ".join(f"{size / 1e6:.1f} MB of {part}" for part, size in parts.items() if size)
    return f"{beside.limit_is} {(beside.limit or 0) / 1e6:.1f} MB holds {held} and no KV block"


def admit_adapter(config: EngineConfig, registered: Iterable[int], name: str) -> None:
    """See whether these adapters (numbers in each), the last of them being ``name``, find room together, of
    which ``max_adapters`` are resident at most. Raises ModelError with the table."""
    plan, sizes = budget(config), list(registered)
    largest = sorted(sizes)[-config.max_adapters :]
    needed = replace(plan, adapters=max(plan.adapters, sum(largest) * loader.BYTES[config.dtype]))
    if not needed.fits:
        memory = config.memory
        instead = " in place of memory.total" if memory.total is not None and memory.kv_blocks is None else ""
        raise ModelError(
            [
                f"adapter {name!r} does not fit beside what a worker holds:",
                needed.table(),
                f"{'unload others, ' if len(sizes) > 1 else ''}set memory.kv_blocks{instead} to fewer than "
                f"{plan.blocks}, or name one in adapters at start, "
                "which keeps room for max_adapters of its size",
            ]
        )


def check(config: EngineConfig) -> None:
    """See, without loading anything, whether this machine can serve the model. Raises ModelError."""
    loader.check(config)
    budget(config)


def with_kv_blocks(config: EngineConfig) -> EngineConfig:
    """``config`` with ``memory.kv_blocks`` set from its budget. Raises ModelError."""
    return replace(config, memory=replace(config.memory, kv_blocks=budget(config).blocks))


def short_of(config: EngineConfig, blocks: int) -> str | None:
    """Says so if a worker's KV memory holds fewer than two of the largest requests that a class allows."""
    totals = [c.max_total or (c.max_input or 0) + (c.max_output or 0) for c in config.classes.values()]
    largest, held = max(totals, default=0), blocks * config.memory.block_size
    if held >= 2 * largest:
        return None
    return f"KV memory holds {held} tokens, less than two of the largest requests ({largest} tokens each)"


def machine_memory() -> int:
    """Bytes of memory that this process may use: RAM, or the cgroup's limit if that is less."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [ram]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:  # no cgroup of this version
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
