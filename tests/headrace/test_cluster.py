"""Load processes placed by Ray: what is refused and lost, and a cluster of two nodes on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headrace import cluster
from headrace.cluster import RayLoad
from headrace.errors import UsageFailed
from headrace.prepare import is_local
from headrace.processes import Child
from headrace.site import LoadEnd, LoadOrder
from loadgen.arrivals import Constant
from loadgen.clock import monotonic
from loadgen.job import TargetJob
from loadgen.plan import Load, Phases, Plan
from loadgen.plan_io import write_plan
from loadgen.reference.group import ReferenceServer
from loadgen.reference.script import Script
from loadgen.workload import Fixed
from results.recordfile import read_records
from scenarios.schema import ClientSpec


def test_without_ray_the_remedy_is_said(monkeypatch):
    """Only who asks for it needs it."""
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(UsageFailed, match=r"pip install 'headrace\[cluster\]'"):
        cluster.check_ray()
    asked = "import headrace.cli, sys; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("address", ["", "ray://head:10001", "head", "http://head:6379", "head:"])
def test_an_address_that_is_none_is_refused(address):
    """Before anything is placed; a Ray client's address is none either."""
    with pytest.raises(ValueError, match="ray_address must be auto, local or HOST:PORT"):
        ClientSpec(ray_address=address)
    assert ClientSpec(ray_address="10.0.0.1:6379").ray_address == "10.0.0.1:6379"


def end_after(said: list[dict[str, Any]], folder: Path) -> LoadEnd:
    """What becomes of a load of two processes whose driver says this and is then killed."""
    lines = "".join(json.dumps(event) + "\n" for event in said)
    script = f"import os\nos.write(1, {lines.encode()!r})\nos.kill(os.getpid(), 9)"
    places = [{"host": "10.0.0.1", "node": str(slice), "niceness": 0} for slice in range(2)]

    async def main() -> LoadEnd:
        driver = await Child.start(["-c", script], folder / "cluster.log")
        load = RayLoad(driver, order_of(folder, "auto"), lambda tick: None, places)
        try:
            return await load.finished()
        finally:
            await load.close()

    return asyncio.run(main())


DONE = {"event": "done", "signals": {"lost": 0}, "interrupted": False}
ENDED = {"slice": 0, "event": "end", "code": 0}


def test_a_driver_that_dies_loses_what_had_no_end(tmp_path):
    """As Ray ends its drivers when the head node has gone: the load process that had ended is not lost."""
    end = end_after([{"slice": 0, **DONE}, ENDED], tmp_path)
    log = tmp_path / "cluster.log"
    assert end.lost == f"the process that speaks to Ray died (exit code -9); see {log}"
    assert [row.get("reason") for row in end.signals["processes"]] == [None, end.lost]
    assert "clock" not in end.facts


def test_a_load_process_that_is_killed_on_its_node_is_lost_load(tmp_path):
    """The actor lives and tells of it; nothing else is lost, and the clocks are known."""
    killed = {"slice": 1, "event": "end", "code": -9}
    end = end_after([{"slice": 0, **DONE}, ENDED, killed, {"event": "facts", "clock": {}}], tmp_path)
    assert end.lost == "load process 1 died (exit code -9)"
    assert end.facts["clock"] == {}
    assert [place["node"] for place in end.facts["placement"]] == ["0", "1"]


# --- a cluster

without_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: headrace[cluster]")


def ray_needed(test: Callable[..., None]) -> Any:
    return pytest.mark.e2e(without_ray(test))


CLUSTER = """\
import ctypes, sys
from ray.cluster_utils import Cluster
head = {"num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
apart = sys.platform == "linux" and ctypes.CDLL(None).unshare(0x80) == 0  # CLONE_NEWTIME, for children
if apart:
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write("monotonic 1000 0")
cluster.add_node(num_cpus=1)
print("at", cluster.address, int(apart), flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, bool, Callable[[], object]]]:
    """(address, whether apart, how to end it) of two nodes of one CPU each. Apart: the second one's
    CLOCK_MONOTONIC is 1000 s ahead, as it may be on another host; that takes a privilege. A process of its
    own holds Ray: what it warns of is not ours."""
    folder = tempfile.mkdtemp(prefix="hr")  # unix sockets live there: a short path
    holder = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder},
        text=True,
    )
    with holder:  # at its end, stdin is closed: that ends the cluster
        assert holder.stdout is not None
        lines = (line.split() for line in holder.stdout)
        _, address, apart = next(words for words in lines if words[:1] == ["at"])
        yield address, bool(int(apart)), lambda: holder.communicate(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def address(nodes: tuple[str, bool, Callable[[], object]], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(cluster, "is_local", lambda url: False)  # both nodes reach this machine's loopback
    return nodes[0]


@pytest.fixture
def target() -> Iterator[TargetJob]:
    with ReferenceServer(Script(ttft=0.02, itl=0.005, tokens=4)) as server:
        yield TargetJob(server.url, "openai_chat", {"model": "reference"})


def order_of(folder: Path, address: str, slices: int = 2, window: float = 3.0) -> LoadOrder:
    plan = Plan.make(
        [Load("ping", Constant(20.0), Fixed(20, 4))], Phases(window=window, drain=10.0), 7, slices=slices
    )
    write_plan(plan, folder / "plan.parquet")
    order = LoadOrder(plan, folder, "word", "n", "r", (), processes=slices, keep_text=True)
    return replace(order, ray_address=address)


def fired(
    target: TargetJob, order: LoadOrder, meanwhile: Callable[[RayLoad], object] | None = None
) -> tuple[RayLoad, LoadEnd]:
    """Place, start and end the load; ``meanwhile`` is called at the first progress after t0 + 1 s."""
    ticked = asyncio.Event()

    async def main() -> tuple[RayLoad, LoadEnd]:
        load = await RayLoad.begin(target, order, lambda tick: tick["t"] > 1e9 and ticked.set())
        try:
            load.start(monotonic() + 3_000_000_000)
            ending = asyncio.create_task(load.finished())
            if meanwhile is not None:
                await asyncio.wait_for(ticked.wait(), 30)
                await asyncio.to_thread(meanwhile, load)
            return load, await asyncio.wait_for(ending, 90)
        finally:
            await load.close()

    return asyncio.run(main())


def nothing_left(load: RayLoad) -> bool:
    """Whether all actors and load processes of it end; the latter's job file is in the actor's folder."""
    limit = time.monotonic() + 20
    while any(Path(f"/proc/{place['pid']}").exists() or _runs(place["folder"]) for place in load.places):
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def _runs(what: str) -> bool:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if what.encode() in file.read_bytes():
                return True
    return False


@ray_needed
def test_two_nodes_fire_what_one_plan_says(tmp_path, nodes, address, target, monkeypatch):
    """Every request has one record, each node its slice; and where hosts have clocks of their own, the
    requests are on time by the clock of each, within the bound that is reported."""
    if not nodes[1]:  # the same clock, but the driver does not know
        monkeypatch.setattr(cluster, "clock_id", lambda: "another host's")
    order = order_of(tmp_path, address)
    load, end = fired(target, order)
    assert (end.lost, end.interrupted, len(end.signals["processes"])) == (None, False, 2)
    parts = [read_records(tmp_path / f"records-{slice}.arrow") for slice in range(2)]
    assert all(complete for _, complete in parts)
    records = pd.concat(part for part, _ in parts)
    assert sorted(records["id"]) == [shot.id for shot in order.plan.shots] == list(range(60))
    assert set(records["outcome"]) == {"completed"}
    assert len((tmp_path / "texts.jsonl").read_text().splitlines()) == 60
    assert len({place["node"] for place in end.facts["placement"]}) == 2
    far = max(end.facts["clock"].values(), key=lambda clock: clock["bound_ns"])
    assert abs(far["offset_ns"] - (1000e9 if nodes[1] else 0)) <= far["bound_ns"]
    assert 0 < far["bound_ns"] < 1e9
    assert all((part["start"] - part["due"] >= 0).all() for part, _ in parts)
    assert max((part["start"] - part["due"]).median() for part, _ in parts) < 1e9
    assert nothing_left(load)
    assert not any(Path(place["folder"]).exists() for place in load.places)


@ray_needed
def test_an_actor_that_is_killed_is_lost_load(tmp_path, address, target):
    """Its requests are unknown, not fewer; the other load process goes on to its end."""
    load, end = fired(target, order_of(tmp_path, address), kill_actor)
    assert end.lost is not None
    assert "load process 1 was lost with its Ray actor (ActorDiedError" in end.lost
    assert load.places[1]["folder"] in end.lost
    records, complete = read_records(tmp_path / "records-0.arrow")
    assert complete
    assert len(records) == 30
    assert not (tmp_path / "records-1.arrow").exists()
    assert sum(clock["bound_ns"] is not None for clock in end.facts["clock"].values()) == 1
    assert nothing_left(load)


def kill_actor(load: RayLoad) -> None:
    os.kill(load.places[1]["pid"], signal.SIGKILL)
    shutil.rmtree(load.places[1]["folder"])


@ray_needed
def test_a_load_that_cannot_be_placed_is_refused(tmp_path, address, target, monkeypatch):
    """Too few CPUs, a target that only this machine reaches, no cluster: each says what to do."""

    def refusal(order: LoadOrder) -> str:
        with pytest.raises(UsageFailed) as caught:
            asyncio.run(RayLoad.begin(target, order, lambda tick: None))
        return str(caught.value)

    monkeypatch.setattr(cluster, "PLACE_LIMIT_S", 3.0)
    crowded = refusal(order_of(tmp_path, address, slices=3))
    assert "has not placed all 3 load processes within 3 s" in crowded
    assert "the cluster has 2" in crowded
    monkeypatch.setattr(cluster, "PLACE_LIMIT_S", 60.0)
    assert "no Ray cluster answers at 127.0.0.1:1" in refusal(order_of(tmp_path, "127.0.0.1:1"))
    monkeypatch.setattr(cluster, "clock_id", lambda: "another host's")
    monkeypatch.setattr(cluster, "is_local", is_local)
    assert f"cannot reach {target.url}" in refusal(order_of(tmp_path, address))


@ray_needed
def test_a_cluster_that_goes_away_is_lost_load(tmp_path, nodes, address, target):
    """In the middle of a run: all that had no end is lost, and it is said why. The last of these tests, since
    it takes the cluster away."""
    _, _, end_it = nodes
    load, end = fired(target, order_of(tmp_path, address, window=60.0), lambda load: end_it())
    assert end.lost is not None
    assert end.lost.count("was lost with its Ray actor") + end.lost.count("speaks to Ray died") == 2
    assert not list(tmp_path.glob("records-*"))
    assert nothing_left(load)
    for place in load.places:
        shutil.rmtree(place["folder"])
