"""What the process around a worker adds to it, without starting one."""

from __future__ import annotations

import socket
from array import array

from engine import messages as m
from engine.config import EngineConfig, MemoryConfig
from engine.process import WorkerProcess
from engine.request import Request
from engine.runner.simulated import SimulatedRunner
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
