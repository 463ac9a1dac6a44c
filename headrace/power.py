"""How much energy the devices of this machine use while a run goes on (MEASUREMENT C43).

Two sources, each a counter that only grows: processor packages and their memory by Linux's powercap (RAPL),
graphics cards by NVML. They only have to be read; where that may not be, it is said. What is read is the
machine's, whoever uses it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from results.economy import ENERGY

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"


@dataclass(slots=True)
class Meter:
    """One device. ``read`` gives J; a counter that begins anew at ``wraps`` J goes on here."""

    device: str
    read: Callable[[], float]
    wraps: float | None = None
    _last: float | None = None
    _turns: float = 0.0

    def joules(self) -> float:
        """Since some time in the past. Raises OSError."""
        now = self.read()
        if self._last is not None and now < self._last and self.wraps is not None:
            self._turns += self.wraps
        self._last = now
        return self._turns + now


@dataclass(slots=True)
class Meters:
    """All that can be read here; ``refused`` says of each other device why it cannot."""

    meters: Sequence[Meter] = ()
    refused: list[str] = field(default_factory=list)
    close: Callable[[], None] = lambda: None

    @property
    def reason(self) -> str | None:
        """Why nothing is read; None if something is."""
        if self.meters:
            return None
        return "; ".join(self.refused) or "this machine shows neither powercap (RAPL) nor NVML counters"

    async def page(self) -> str:
        """As a target shows its metrics. Raises OSError."""
        lines = (f'{ENERGY}{{device="{meter.device}"}} {meter.joules()!r}' for meter in self.meters)
        return "\n".join(lines) + "\n"


def machine(powercap: Path = POWERCAP, library: str = NVML) -> Meters:
    """The meters of this machine. A part of a package is in its package, except its memory."""
    refused: list[str] = []
    meters = list(_zones(powercap, refused))
    cards, close = _cards(library, refused)
    return Meters((*meters, *cards), refused, close)


def _zones(root: Path, refused: list[str]) -> Iterator[Meter]:
    for zone in sorted(root.glob("intel-rapl:*")):
        name = _text(zone / "name")
        if not (name.startswith("package") or name == "dram"):
            continue
        device = name if name != "dram" else f"dram-{zone.name.split(':')[1]}"
        file = zone / "energy_uj"
        try:
            int(file.read_text())
            wraps = int((zone / "max_energy_range_uj").read_text()) * 1e-6
        except (OSError, ValueError) as error:
            refused.append(f"{device}: {file}: {getattr(error, 'strerror', None) or error}")
            continue
        yield Meter(device, lambda file=file: int(file.read_text()) * 1e-6, wraps)  # type: ignore[misc]


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _cards(library: str, refused: list[str]) -> tuple[list[Meter], Callable[[], None]]:
    """Every card that the driver shows, by its total energy since it was loaded."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return [], lambda: None
    if code := nvml.nvmlInit_v2():
        refused.append(f"NVML does not begin (code {code})")
        return [], lambda: None
    count = ctypes.c_uint()
    code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    meters = [] if code else [_card(nvml, index) for index in range(count.value)]
    kept = []
    for meter in meters:
        try:
            meter.joules()
        except OSError as error:
            refused.append(f"{meter.device}: {error}")
        else:
            kept.append(meter)
    return kept, nvml.nvmlShutdown


def _card(nvml: ctypes.CDLL, index: int) -> Meter:
    def read() -> float:
        handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
        code = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        code = code or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        if code:
            raise OSError(f"NVML answers code {code} for its energy")
        return millijoules.value * 1e-3

    return Meter(f"gpu{index}", read)
