"""Cores of one's own are kept awake while the load runs, where that is allowed."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen import owncores
from loadgen.health import merged
from loadgen.owncores import can_be_kept_awake, elsewhere, kept_awake


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


@pytest.mark.skipif(sys.platform != "linux", reason="policies of Linux's scheduler")
@pytest.mark.parametrize("may", [False, True])
def test_a_process_is_last_only_where_it_can_come_back(may: bool) -> None:
    """In a process of its own: what is nice once stays so."""
    code = f"""
import os
from loadgen.owncores import Rank, _could_come_back
back = _could_come_back()
assert os.sched_getscheduler(0) == os.SCHED_OTHER
rank = Rank({may})
seen = [os.sched_getscheduler(0)]
for last in (True, True, False, True):
    rank.be(last)
    seen.append(os.sched_getscheduler(0))
there = os.SCHED_IDLE if back and {may} else os.SCHED_BATCH
assert seen == [os.SCHED_BATCH, there, there, os.SCHED_BATCH, there], (seen, back)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(("said", "all_of_them"), [([True, True], True), ([True, False], False), ([], False)])
def test_a_run_was_awake_if_all_its_processes_were(said: list[bool], all_of_them: bool) -> None:
    assert merged([{"awake": one} for one in said])["awake"] is all_of_them
