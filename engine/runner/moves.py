"""Carries out the transfers of a step for a model that runs on torch."""

from __future__ import annotations

import time

import torch

from engine.kv.disk import DiskStore
from engine.model.host_memory import HostMemory
from engine.model.kv_memory import KvMemory
from engine.runner.base import Move, Transfer


class Mover:
    """Moves blocks between the KV memory of the device, host memory and, if there is one, a disk."""

    def __init__(self, memory: KvMemory, host: HostMemory, disk: DiskStore | None) -> None:
        self._memory = memory
        self._host = host
        self._disk = disk

    def carry_out(self, transfers: tuple[Transfer, ...]) -> tuple[tuple[int, ...], float]:
        """All in order; returns the indexes of those that did not happen, and the seconds that it took."""
        if not transfers:
            return (), 0.0
        began = time.perf_counter()
        with torch.inference_mode():
            lost = tuple(index for index, transfer in enumerate(transfers) if not self._move(transfer))
        return lost, time.perf_counter() - began

    def _move(self, transfer: Transfer) -> bool:
        match transfer.move:
            case Move.COPY:
                self._memory.block(transfer.target).copy_(self._memory.block(transfer.source))
            case Move.SAVE:
                self._host[transfer.target].copy_(self._memory.block(transfer.source))
            case Move.LOAD:
                self._memory.block(transfer.target).copy_(self._host[transfer.source])
            case Move.SPILL | Move.FETCH | Move.DROP:
                return self._disk is not None and self._on_disk(self._disk, transfer)
        return True

    def _on_disk(self, disk: DiskStore, transfer: Transfer) -> bool:
        root, key = transfer.root, transfer.key
        if transfer.move is Move.SPILL:
            return disk.write(root, key, self._host.bytes(transfer.source))
        if transfer.move is Move.FETCH:
            return disk.read(root, key, self._host.bytes(transfer.target))
        disk.drop(key)
        return True
