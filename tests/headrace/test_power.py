"""What the devices of this machine use, read where it can be (MEASUREMENT C43)."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.power import Meter, machine
from loadgen.scrape import samples
from results.economy import ENERGY

NO_LIBRARY = "libnothing-of-this-name.so"


def zone(root: Path, name: str, called: str, used: str, wraps: int = 262_143_328_850) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{called}\n")
    (folder / "energy_uj").write_text(used)
    (folder / "max_energy_range_uj").write_text(f"{wraps}\n")
    return folder


def test_packages_and_memory_count_once(tmp_path: Path) -> None:
    """Cores are in their package, the platform is around it; memory is beside it."""
    zone(tmp_path, "intel-rapl:0", "package-0", "5000000\n")
    zone(tmp_path, "intel-rapl:0:0", "core", "4000000\n")
    zone(tmp_path, "intel-rapl:0:1", "dram", "250000\n")
    zone(tmp_path, "intel-rapl:1", "psys", "9000000\n")
    found = machine(tmp_path, NO_LIBRARY)
    assert [(meter.device, meter.joules()) for meter in found.meters] == [
        ("package-0", 5.0),
        ("dram-0", 0.25),
    ]
    assert found.reason is None


def test_a_page_of_it_is_read_like_a_target_s_metrics(tmp_path: Path) -> None:
    """One sample for each device."""
    zone(tmp_path, "intel-rapl:0", "package-0", "5000000\n")
    page = asyncio.run(machine(tmp_path, NO_LIBRARY).page())
    (row,) = samples(page, 1, "machine")
    assert (row.name, row.labels, row.value) == (ENERGY, '{"device": "package-0"}', 5.0)


def test_a_counter_that_begins_anew_goes_on() -> None:
    """It wraps at what its zone says."""
    reads = iter([90.0, 99.0, 4.0, 6.0, 1.0])
    meter = Meter("package-0", lambda: next(reads), wraps=100.0)
    assert [meter.joules() for _ in range(5)] == [90.0, 99.0, 104.0, 106.0, 201.0]


def test_what_may_not_be_read_says_why(tmp_path: Path) -> None:
    """A counter that is not one, and a machine that shows none."""
    zone(tmp_path, "intel-rapl:0", "package-0", "secret\n")
    found = machine(tmp_path, NO_LIBRARY)
    assert found.meters == ()
    assert found.reason is not None
    assert found.reason.startswith("package-0: ")
    nothing = machine(tmp_path / "nowhere", NO_LIBRARY)
    assert nothing.reason == "this machine shows neither powercap (RAPL) nor NVML counters"


def test_a_device_that_goes_away_is_a_failed_scrape(tmp_path: Path) -> None:
    """OSError, which a scraper counts with its reason."""
    folder = zone(tmp_path, "intel-rapl:0", "package-0", "5000000\n")
    found = machine(tmp_path, NO_LIBRARY)
    (folder / "energy_uj").unlink()
    with pytest.raises(OSError, match="energy_uj"):
        asyncio.run(found.page())


DRIVER = """
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *mj) {
    *mj = 4000000000000ULL;
    return h == (void *)1 ? 0 : 3;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for a driver of its own")
def test_cards_are_read_from_the_driver(tmp_path: Path) -> None:
    """A made-up driver of two cards: the total of one in J, the other does not count its energy."""
    library = tmp_path / "libnvml.so"
    (tmp_path / "nvml.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    found = machine(tmp_path / "nowhere", str(library))
    assert [(meter.device, meter.joules()) for meter in found.meters] == [("gpu0", 4e9)]
    assert found.refused == ["gpu1: NVML answers code 3 for its energy"]
    found.close()
