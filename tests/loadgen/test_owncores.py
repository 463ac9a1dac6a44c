"""Cores of one's own are kept awake while the load runs, where that is allowed."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from loadgen import owncores
from loadgen.health import merged
from loadgen.owncores import can_be_kept_awake, kept_awake


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    device = tmp_path / "cpu_dma_latency"
    monkeypatch.setattr(owncores, "PM_QOS", device)
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


@pytest.mark.parametrize(("said", "all_of_them"), [([True, True], True), ([True, False], False), ([], False)])
def test_a_run_was_awake_if_all_its_processes_were(said: list[bool], all_of_them: bool) -> None:
    assert merged([{"awake": one} for one in said])["awake"] is all_of_them
