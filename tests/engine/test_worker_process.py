"""What the process around a worker adds to it, without starting one."""

from __future__ import annotations

import socket
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from engine import messages as m
from engine import process as module
from engine.config import EngineConfig, MemoryConfig
from engine.config_io import write_config
from engine.process import FAILED, WorkerProcess
from engine.request import Request
from engine.runner.simulated import SimulatedRunner
from engine.wire import Frames
from engine.worker import Worker


def test_planning_a_step_is_timed() -> None:
    """Each planned step leaves its time; looking and finding nothing to do leaves none (ENGINE 14)."""
    config = EngineConfig(model="simulated", memory=MemoryConfig(kv_blocks=8))
    runner = SimulatedRunner(config.cost)
    worker = Worker(config, 0, "w", eos_ids=frozenset(), max_positions=100, vocabulary=100)
    main, beat = socket.socketpair()
    with main, beat:
        process = WorkerProcess(worker, runner, main, beat, 1.0)

        def planned() -> int:
            ((_, (_, counts)),) = worker.meter.snapshot()["headrace_engine_schedule_seconds"]
            return sum(counts)

        assert process._plan() is None
        assert planned() == 0
        worker.receive(m.Submit(Request(1, array("I", [1, 2, 3]), b"", (), 1)), 0)
        assert process._plan() is not None
        assert planned() == 1


def test_too_little_memory_is_said_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As whatever else keeps a worker from starting: the gateway hears why, and nobody reads a traceback."""

    def build(*_: Any) -> Any:
        raise MemoryError("no memory for 10 KV blocks: set a smaller memory.kv_blocks")

    write_config(tmp_path / "engine.json", EngineConfig(model="simulated"))
    main, gateway = socket.socketpair()
    monkeypatch.setattr(module, "build", build)
    monkeypatch.setattr(module, "connect", lambda *_: main)
    monkeypatch.setattr(module, "end_with_parent", lambda _: None)
    monkeypatch.setattr(module.os, "nice", lambda _: 0)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    argv = ["engine.process", "--socket", "s", "--worker", "0", "--config", str(tmp_path / "engine.json")]
    monkeypatch.setattr(sys, "argv", argv)
    with main, gateway:
        assert module.main() == FAILED
        (said,) = Frames().feed(gateway.recv(1 << 16))
    assert said == m.Failed(
        "cannot load the model: no memory for 10 KV blocks: set a smaller memory.kv_blocks"
    )
