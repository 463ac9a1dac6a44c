"""Cores of one's own are kept awake while the load runs, where that is allowed."""

from __future__ import annotations

import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen import owncores
from loadgen.health import merged
from loadgen.owncores import Rank, _could_come_back, can_be_kept_awake, elsewhere, kept_awake


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    device, driver = tmp_path / "cpu_dma_latency", tmp_path / "current_driver"
    driver.write_text("haltpoll\n")
    monkeypatch.setattr(owncores, "PM_QOS", device)
    monkeypatch.setattr(owncores, "IDLE_DRIVER", driver)
    return device


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


def test_the_device_is_held_open_with_0_in_it_and_let_go(device: Path) -> None:
    """The kernel forgets what was asked for when the file is closed, also if the load failed."""
    device.write_bytes(b"")
    before = open_files()
    with kept_awake() as held:
        assert held
        assert device.read_bytes() == struct.pack("@i", 0)
        assert open_files() == before + (before > 0)
    assert open_files() == before
    with pytest.raises(RuntimeError), kept_awake():
        raise RuntimeError
    assert open_files() == before


def test_nothing_is_touched_unless_it_is_wanted(device: Path) -> None:
    device.write_bytes(b"as it was")
    with kept_awake(False) as held:
        assert not held
    assert device.read_bytes() == b"as it was"


@pytest.mark.parametrize("there", ["nothing", "a folder", "a full device"])
def test_where_it_is_not_allowed_it_says_so(
    device: Path, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the load runs."""
    if there == "a folder":
        device.mkdir()
    elif there == "a full device":
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        monkeypatch.setattr(owncores, "PM_QOS", Path("/dev/full"))
    before = open_files()
    assert not can_be_kept_awake()
    assert open_files() == before


def test_where_nobody_keeps_the_promise_it_is_not_taken(device: Path) -> None:
    """Without a driver of idle cores the device takes what is written, and nothing follows."""
    device.write_bytes(b"")
    owncores.IDLE_DRIVER.write_text("none\n")
    assert not can_be_kept_awake()
    owncores.IDLE_DRIVER.unlink()
    assert not can_be_kept_awake()
    assert device.read_bytes() == b""


def test_a_target_is_elsewhere_if_its_address_is_none_of_ours() -> None:
    """By whichever name; one that cannot be looked up is not taken for another machine's."""
    for host in (
        "127.0.0.1",
        "127.9.9.9",
        "localhost",
        "0.0.0.0",
        "[::1]",
        socket.gethostname(),
        "no.such.invalid",
    ):
        assert not elsewhere(f"http://{host}:8000"), host
    for host in ("192.0.2.1", "198.51.100.7"):  # for documentation only
        assert elsewhere(f"https://{host}/v1"), host


linux = pytest.mark.skipif(sys.platform != "linux", reason="policies of Linux's scheduler")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which nobody has placed yet."""
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


def places(child: subprocess.Popen[bytes], rank: Rank, *last: bool) -> list[int]:
    """The policies that it has one after the other."""
    seen = []
    for one in last:
        rank.be(one)
        seen.append(os.sched_getscheduler(child.pid))
    return seen


@linux
def test_a_process_is_last_while_it_is_wanted_so(sleeper: subprocess.Popen[bytes]) -> None:
    """And behind the others, but not last, otherwise; whoever places it stays where it is."""
    if not _could_come_back():
        pytest.skip("nobody may come back from being last here")
    own, rank = os.sched_getscheduler(0), Rank(sleeper.pid, may_be_last=True)
    assert not rank.last
    seen = places(sleeper, rank, True, True, False, False, True)
    last, back = os.SCHED_IDLE, os.SCHED_BATCH
    assert seen == [last, last, back, back, last]
    assert rank.last
    assert os.sched_getscheduler(0) == own


@linux
@pytest.mark.parametrize("may", [False, True])
def test_a_process_that_may_not_be_last_is_left_alone(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, may: bool
) -> None:
    """Where other things are to run, or where it could not be brought back."""
    monkeypatch.setattr(owncores, "_could_come_back", lambda: not may)
    before = os.sched_getscheduler(sleeper.pid)
    rank = Rank(sleeper.pid, may_be_last=may)
    assert places(sleeper, rank, True, False, True) == [before] * 3
    assert not rank.last


@linux
@pytest.mark.parametrize("was_last", [False, True])
def test_a_process_that_has_ended_has_no_place(sleeper: subprocess.Popen[bytes], was_last: bool) -> None:
    """Its load process may not have heard of it yet."""
    rank = Rank(sleeper.pid, may_be_last=True)
    rank.be(was_last)
    sleeper.kill()
    sleeper.wait()
    rank.be(not was_last)
    rank.be(was_last)


@linux
def test_who_steps_back_stays_behind_the_others() -> None:
    """In a process of its own, since what is nice once stays so. To try whether one could come back from
    being last leaves everything as it was."""
    code = """
import os
from loadgen.owncores import NICENESS, _could_come_back, come_back, step_back
was = os.nice(0)
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
back = _could_come_back()
assert (os.sched_getscheduler(0), os.nice(0)) == (os.SCHED_OTHER, was)
step_back()
assert (os.sched_getscheduler(0), os.nice(0)) == (os.SCHED_BATCH, min(19, was + NICENESS))
if back:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    come_back()
    assert (os.sched_getscheduler(0), os.nice(0)) == (os.SCHED_BATCH, min(19, was + NICENESS))
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@linux
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the system call is that of x86_64")
def test_who_steps_back_gives_the_core_away_soon() -> None:
    """Whatever policy it has later; as far as the kernel knows of slices."""
    code = """
import ctypes, os, platform, struct
from loadgen.owncores import SLICE_NS, step_back
def slice_ns():
    found = ctypes.create_string_buffer(56)
    assert ctypes.CDLL(None).syscall(315, 0, found, 56, 0) == 0
    return struct.unpack_from("=Q", found.raw, 24)[0]
knows = slice_ns() > 0
step_back()
assert not knows or slice_ns() == SLICE_NS
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
assert not knows or slice_ns() == SLICE_NS
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(("said", "all_of_them"), [([True, True], True), ([True, False], False), ([], False)])
def test_a_run_was_awake_if_all_its_processes_were(said: list[bool], all_of_them: bool) -> None:
    assert merged([{"awake": one} for one in said])["awake"] is all_of_them
