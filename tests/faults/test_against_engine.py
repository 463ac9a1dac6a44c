"""The faults against the real gateway and workers, in virtual time."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from engine.config import EngineConfig, MemoryConfig, SchedulerConfig
from engine.fleet.backend import Ask, StreamEvent
from engine.fleet.fleet import Fleet
from engine.fleet.inproc import InprocPool
from engine.runner.simulated import SimulatedRunner
from faults.cancel import Cancel
from faults.conductor import Conductor, edit
from faults.fault import Fault, Seen, Stage
from faults.invariants import check
from faults.when import InPrefill
from faults.worker import FreezeWorker, KillWorker
from loadgen.clock import Clock, run_virtual, sleep_until
from loadgen.plan import Plan, Shot

START = 5 * 10**9
"""When the fleet has long been ready: t0 of the run."""


class Client:
    """Sends every shot when it is due, straight into the fleet, and can hang up."""

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self.fleet, self.clock = fleet, clock
        self.numbers: dict[int, int] = {}

    def send(self, shot: Shot) -> None:
        tokens = array("I", [(shot.id * 131 + k) % 4096 for k in range(shot.n_in_asked)])
        ask = Ask(tokens, shot.n_out_asked, client_id=self.request_id(shot.id), received=self.clock())
        self.numbers[shot.id], _ = self.fleet.submit(ask, self.hear)

    def hear(self, event: StreamEvent) -> None:
        """Nothing to do with an answer here."""

    def cancel(self, shot: int) -> None:
        self.fleet.cancel(self.numbers[shot])

    def request_id(self, shot: int) -> str:
        return f"r{shot}"


def played(plan: Plan, fault: Fault) -> tuple[Any, list[dict[str, Any]], list[Any]]:
    """(window, truth, judgements) after the plan has been sent and the fault has played."""
    plan = edit([fault], plan, seed=1)

    async def main(clock: Clock) -> Any:
        config = EngineConfig(
            model="simulated",
            workers=2,
            memory=MemoryConfig(kv_blocks=256),
            scheduler=SchedulerConfig(prefill_chunk=64),  # each prompt is two chunks long
        )
        pool = InprocPool(config, clock, lambda worker: SimulatedRunner(config.cost, worker=worker))
        fleet = Fleet(config, pool, clock)
        client = Client(fleet, clock)
        await fleet.start()
        await sleep_until(START, clock)
        stage = Stage(plan, fleet, client, lambda: clock() - START, lambda at: sleep_until(START + at, clock))
        async with Conductor([fault], stage) as conductor:
            for shot in plan.shots:
                assert shot.due_ns is not None
                await stage.sleep_until(shot.due_ns)
                client.send(shot)
            await stage.sleep_until(45 * 10**9)
        truth, audit = await fleet.truth(), await fleet.audit()
        await fleet.stop()
        (window,) = conductor.windows
        seen = Seen(plan, [], truth, START, [audit], [window])
        return window, truth, check(seen)

    return run_virtual(main)


def broken(judgements: list[Any]) -> dict[str, str]:
    """What failed, apart from what needs the client's records, of which there are none here."""
    needs_records = {"I1", "I3"}
    return {j.id: j.evidence for j in judgements if j.ok is False and j.id not in needs_records}


def test_a_kill_in_prefill_is_proven_and_healed(plan: Plan) -> None:
    """The worker dies while it holds a prompt, comes back as another, and every invariant holds."""
    window, truth, judgements = played(plan, KillWorker("k", worker=1, at=4.0, when=InPrefill(1)))
    assert window.error is None
    assert window.proof["held"]["phase"] == "prefill:1"
    assert window.proof["incarnation_before"] != window.proof["incarnation_after"]
    assert window.planned < window.injected <= window.proven < window.healed
    assert broken(judgements) == {}
    assert len(truth) == len(plan.shots)


def test_a_frozen_worker_leaves_the_rotation_and_returns(plan: Plan) -> None:
    """SIGSTOP is noticed by silence after 2 s; thawed, the same life is back."""
    window, _, judgements = played(plan, FreezeWorker("f", worker=0, at=4.0, for_=6.0))
    assert window.error is None
    assert window.proof["state_seen"] == "ejected"
    silent = (window.proven - window.injected) / 1e9
    assert 1.7 < silent < 2.3  # counted from the last heartbeat, up to 250 ms before the strike
    assert window.proven < window.proof["thawed"] <= window.healed
    assert broken(judgements) == {}


@pytest.mark.parametrize(("when", "phase"), [("queued", "queued"), (InPrefill(1), "prefill")])
def test_a_held_request_is_cancelled_in_its_phase(plan: Plan, when: Any, phase: str) -> None:
    """The truth of the engine names the very phase in which the client hung up."""
    window, truth, judgements = played(plan, Cancel("c", "chat", 0.2, when))
    assert window.error is None
    cancelled = [row for row in truth if row["finish_reason"] == "cancelled"]
    assert [row["cancel_phase"] for row in cancelled] == [phase] * 4
    assert broken(judgements) == {}
