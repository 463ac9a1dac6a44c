"""The parts of a run that need no run: scenario to plan, watching, origin, child processes, lost load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from faults.fault import FaultWindow
from headrace import origin, prepare
from headrace.console import Silent, Tick
from headrace.errors import BenchError, Interrupted, TargetFailed, UsageFailed
from headrace.live import _url_site, models_of, target_override
from headrace.live_load import LiveLoad
from headrace.processes import Child
from headrace.site import LoadOrder, NoControls
from headrace.watching import Watcher
from loadgen.accounts import record_of
from loadgen.job import LoadJob
from loadgen.plan import Phases
from loadgen.progress import Counts, Tallies
from results.record import Outcome
from scenarios.schema import UrlTarget


def test_a_name_or_a_path_is_a_scenario(tmp_path: Path) -> None:
    """Shipped scenarios go by their name, with and without .yaml; a file of that name comes first."""
    by_name, by_file = (prepare.load_scenario(Path(name)) for name in ("smoke", "scenarios/smoke.yaml"))
    assert by_name == by_file
    mine = tmp_path / "smoke.yaml"
    mine.write_text(prepare.files.shipped()["smoke"].read_text().replace("seed: 1", "seed: 99"))
    assert prepare.load_scenario(mine).seed == 99
    with pytest.raises(UsageFailed, match=r"nothing: no such file; shipped scenarios: .*quickstart"):
        prepare.load_scenario(Path("nothing"))


def test_the_seed_decides_the_plan() -> None:
    """--seed wins over the file's; a file without one draws one, which is recorded."""
    digests = [prepare.make_plan(prepare.load_scenario(Path("smoke"), seed=s)).digest for s in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]
    drawn = [prepare.load_scenario(Path("smoke"), ("seed=null",)).seed for _ in range(2)]
    assert None not in drawn
    assert drawn[0] != drawn[1]


def test_the_judge_knows_what_was_planned() -> None:
    """Requests of the window by class, bursts included; warm-up is not planned for any gate."""
    scenario = prepare.load_scenario(Path("quickstart"))
    plan = prepare.make_plan(scenario)
    judging = prepare.judging_of(scenario, plan, virtual=False, strict=True, allow_inconclusive=False)
    inside = {
        name: sum(s.class_ == name and s.phase == "window" for s in plan.shots) for name in ("chat", "batch")
    }
    assert {name: goal.planned for name, goal in judging.classes.items()} == inside
    assert sum(inside.values()) < len(plan.shots)
    assert judging.own_engine
    described = prepare.describe_plan(scenario, plan)
    assert {row["class"]: row["in window"] for row in described["classes"]} == inside
    assert described["digest"] == plan.digest
    assert described["warnings"] == []
    few = prepare.load_scenario(Path("smoke"), ("gates=[ping.ttft.p99 < 1s]",))
    (warning,) = prepare.describe_plan(few, prepare.make_plan(few))["warnings"]
    assert warning.endswith("p99 needs 100 requests, 30 are planned")


class Noted(Silent):
    def __init__(self) -> None:
        self.ticks: list[Tick] = []
        self.notes: list[str] = []

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_users_must_not_come_to_the_end_of_the_plan_unless_it_was_asked_for() -> None:
    """The judge knows the last turn of each user of a closed loop; with a number of requests that is as
    the scenario says."""
    scenario = prepare.load_scenario(Path("closed-loop"))
    plan = prepare.make_plan(scenario)
    judging = prepare.judging_of(scenario, plan, virtual=True, strict=False, allow_inconclusive=False)
    (users,) = judging.users.values()
    assert (list(judging.users), len(users.last), users.think_ns) == (["user"], 4, 500_000_000)
    assert users.last == tuple(shot.id for shot in plan.shots if shot.class_ == "user")[-4:]
    few = prepare.load_scenario(Path("closed-loop"), ("load.0.arrival.requests=5",))
    few_plan = prepare.make_plan(few)
    assert not prepare.judging_of(few, few_plan, virtual=True, strict=False, allow_inconclusive=False).users


def test_watching_tells_each_stage_of_a_fault_once() -> None:
    """Snapshots become ticks that add up; a fault's stages and its error are said when they come."""
    plan = prepare.make_plan(prepare.load_scenario(Path("smoke")))
    counts, tallies, view = Counts(plan.shots, plan.phases), Tallies(plan.phases), Noted()
    crash = FaultWindow("crash", "kill_worker", "worker 1")
    watcher = Watcher(view, plan.phases, [crash])
    for shot, outcome in zip(plan.shots, (Outcome.COMPLETED, Outcome.RESET, Outcome.NOT_SENT), strict=False):
        if outcome is not Outcome.NOT_SENT:
            counts.sent[shot.class_] += 1
        tallies.closed(record_of(shot, outcome, "window", "m"))
    watcher.on_tick(asdict(counts.snapshot(2_000_000_000, 4, tallies.heard())))
    crash.injected = crash.proven = 2_000_000_000
    watcher.on_tick(asdict(counts.snapshot(3_000_000_000, 0, tallies.heard())))
    crash.error = "not back"
    watcher.say("over")
    watcher.say("really")
    tick = view.ticks[0]
    assert (tick.elapsed, tick.total, tick.in_flight) == (2.0, 6.0, 4)
    assert (tick.sent, tick.planned, tick.completed, tick.failed) == (2, len(plan.shots), 1, 1)
    assert [note.split()[-1] for note in view.notes] == ["injected", "proven", "back", "over", "really"]


def test_a_shadowed_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Somebody's own `results` before ours on the path: named with its place, exit 2."""
    origin.check_origin()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "results")
    with pytest.raises(UsageFailed, match="shadowed") as caught:
        origin.check_origin()
    assert str(tmp_path / "results") in str(caught.value)


def test_each_failure_has_its_exit_code() -> None:
    """MEASUREMENT 9: usage 2, target 3, interrupted 4."""
    codes = {kind: kind.exit_code for kind in (UsageFailed, TargetFailed, Interrupted)}
    assert codes == {UsageFailed: 2, TargetFailed: 3, Interrupted: 4}
    assert str(BenchError("what", "where")) == "what\nwhere"


def test_a_foreign_target_refuses_door_three() -> None:
    """Each verb says why, and is remembered."""
    controls = NoControls("http://x has no admin door")
    with pytest.raises(NotImplementedError, match="kill: http://x has no admin door"):
        asyncio.run(controls.kill(0))
    assert controls.asked == ["kill"]


def test_a_key_that_is_not_set_is_said_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the variable, never its value."""
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(UsageFailed, match="environment variable MY_KEY, which is not set"):
        asyncio.run(models_of(UrlTarget("http://127.0.0.1:1", "m", key_env="MY_KEY")))
    assert target_override("http://h:1/v1") == 'target={"url": "http://h:1/v1", "model": ""}'


# --- children: real processes, and short ones

ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


def test_a_child_is_told_and_heard_by_lines(tmp_path: Path) -> None:
    """A JSON line in, a line out; ended by SIGTERM, and once more without harm."""

    async def main() -> tuple[bytes, int | None, int, int | None]:
        child = await Child.start(["-c", ECHO], tmp_path / "log")
        child.tell({"start": 1})
        line, running = await child.read_line(), child.code()
        ended = await child.end(10)
        child.tell({"late": True})
        return line, running, ended, await child.end(10)

    assert asyncio.run(main()) == (b'{"START": 1}\n', None, -signal.SIGTERM, -signal.SIGTERM)


def test_a_child_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    """SIGKILL after the limit; what it wrote to stderr is in its log."""
    stubborn = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('never', file=sys.stderr, flush=True); print('up', flush=True)\n"
        "time.sleep(60)"
    )

    async def main() -> int:
        child = await Child.start(["-c", stubborn], tmp_path / "log")
        await child.read_line()
        return await child.end(0.05)

    assert asyncio.run(main()) == -signal.SIGKILL
    assert (tmp_path / "log").read_text() == "never\n"


def load_that_says(said: bytes, folder: Path) -> tuple[Any, list[Any]]:
    """What LiveLoad makes of a load process that says this and is then killed."""
    plan = prepare.make_plan(prepare.load_scenario(Path("smoke")))
    script = f"import os, sys\nos.write(1, {said!r})\nos.kill(os.getpid(), 9)"
    ticks: list[Any] = []

    async def main() -> Any:
        child = await Child.start(["-c", script], folder / "load.log")
        order = LoadOrder(plan, folder, "word", None, "tag", ())
        load = LiveLoad([child], order, ticks.append)
        try:
            return await load.finished()
        finally:
            await load.close()

    return asyncio.run(main()), ticks


def test_a_load_process_that_dies_while_it_speaks(tmp_path: Path) -> None:
    """Half a line is no event: the load is lost, and the reason is the signal."""
    snapshot = {"event": "progress", "t": 1, "phase": "window", "in_flight": 0, "classes": {}}
    end, ticks = load_that_says(json.dumps(snapshot).encode() + b'\n{"event": "do', tmp_path)
    assert [tick["t"] for tick in ticks] == [1]
    assert end.lost == "load process 0 died (exit code -9)"
    assert not end.interrupted
    assert (end.signals["lost"], end.signals["littles"]) == (None, None)
    assert end.signals["processes"][0]["reason"] == end.lost


def test_a_load_process_says_what_went_wrong(tmp_path: Path) -> None:
    """Its own words are the reason."""
    end, _ = load_that_says(b'{"event": "error", "message": "OSError: disk full"}\n', tmp_path)
    assert end.lost == "OSError: disk full"


def test_the_load_is_over_when_it_says_so(tmp_path: Path) -> None:
    """A process that dies after `done` has lost nothing."""
    end, _ = load_that_says(b'{"event": "done", "signals": {"lost": 0}, "interrupted": true}\n', tmp_path)
    assert (end.lost, end.interrupted, end.signals["lost"]) == (None, True, 0)
    assert os.listdir(tmp_path) == ["load.log"]


def test_phases_bound_the_watch() -> None:
    """The bar ends where the load ends, not where the drain does."""
    view = Noted()
    phases = Phases(window=10.0, warmup=2.0, drain=30.0)
    Watcher(view, phases).on_tick({"t": -1, "phase": "warmup", "in_flight": 0, "classes": {}})
    assert (view.ticks[0].total, view.ticks[0].elapsed, view.ticks[0].ttft_ms) == (12.0, 0.0, None)


def test_a_target_shares_this_machine_by_whatever_name() -> None:
    """Its report says so, and its load process leaves the cores as they are."""
    for host, shared in (("127.0.0.1", True), (socket.gethostname(), True), ("192.0.2.1", False)):
        site = _url_site(UrlTarget(url=f"http://{host}:8000", model="m"))
        assert site.facts == {"co_located": shared}, host
        assert LoadJob("plan", "records", site.target).on_own_cores() is not shared
