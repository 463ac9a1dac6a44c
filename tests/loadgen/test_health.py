"""What the load process measures about itself."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import native
from loadgen.alarm import TimerfdAlarm
from loadgen.clock import Clock, monotonic, run_virtual
from loadgen.health import GcMeter, HealthMeter, LoopLag, merged, read_steal
from loadgen.inflight import InFlight

MS = 1_000_000


def test_loop_lag_is_measured_against_absolute_times() -> None:
    """A loop that is held up for 30 ms shows it once, and no lag before or after."""

    async def main(clock: Clock) -> tuple[int | None, int | None]:
        late = 0
        lag = LoopLag(lambda: clock() + late)
        lag.start()
        await asyncio.sleep(0.105)
        late = 30 * MS
        await asyncio.sleep(0.5)
        lag.stop()
        return lag.max_ns(), lag.p99_ns()

    longest, p99 = run_virtual(main)
    assert longest == pytest.approx(30 * MS, abs=10 * MS)
    assert p99 is not None


def test_a_loop_held_up_for_long_is_not_sampled_once_for_it() -> None:
    """A tenth of the time in one piece is a tenth of the samples: its p99 is nearly that piece."""

    async def main(clock: Clock) -> tuple[int | None, int | None]:
        late = 0
        lag = LoopLag(lambda: clock() + late)
        lag.start()
        await asyncio.sleep(4.505)
        late = 1000 * MS
        await asyncio.sleep(4.5)
        late = 1500 * MS  # and it is late when it is asked to stop
        lag.stop()
        lag.stop()
        return lag.max_ns(), lag.p99_ns()

    longest, p99 = run_virtual(main)
    assert longest == pytest.approx(1000 * MS, abs=10 * MS)
    assert p99 == pytest.approx(900 * MS, abs=20 * MS)  # of 500 and 1,000 ms in 10.5 s


def test_the_collectors_pauses_are_seen_and_the_callback_is_removed() -> None:
    """The longest pause counts; nothing is left behind in the interpreter."""
    before = list(gc.callbacks)
    ticks = iter(range(0, 10**6, 5))
    meter = GcMeter(lambda: next(ticks))
    meter.start()
    gc.collect()
    meter.stop()
    meter.stop()
    assert meter.longest_ns == 5
    assert gc.callbacks == before


def test_a_meter_that_never_began_has_measured_nothing() -> None:
    """Absent is None, not 0."""
    signals = HealthMeter(monotonic).signals()
    assert (signals.loop_lag_p99_ns, signals.gc_pause_max_ns, signals.cpu_ratio) == (None, None, None)


def test_a_meter_gives_every_signal_of_a_real_machine() -> None:
    """Shares are ratios, times ns."""

    async def main() -> None:
        steal = iter([(0, 100), (5, 200)])
        meter = HealthMeter(monotonic, lambda: next(steal))
        meter.begin()
        await asyncio.sleep(0.03)
        signals = meter.signals()
        assert signals.steal_ratio == 0.05
        assert signals.loop_lag_p99_ns is not None
        assert signals.cpu_ratio is not None
        assert 0 <= signals.cpu_ratio < 2
        assert signals.as_dict()["lost"] == 0

    asyncio.run(main())


ONE = {"loop_lag_p99_ns": 5, "cpu_ratio": 0.9, "lost": 1, "littles": {"integral": 2.0, "sum": 2.0}}
TWO = {"loop_lag_p99_ns": 9, "cpu_ratio": None, "lost": 2, "littles": {"integral": 1.0, "sum": 1.5}}


def test_reads_are_native_if_all_were() -> None:
    """One process without the extension, or one that does not say, and they were not."""
    native, python = {**ONE, "reads": "native"}, {**TWO, "reads": "python"}
    found = [
        merged(rows)["reads"] for rows in ([native], [native, native], [native, python], [native, ONE], [])
    ]
    assert found == ["native", "native", "python", "python", "python"]


def test_signals_of_several_processes_become_the_worst_of_them() -> None:
    """What is counted is summed, each worst value says whose it is; what nobody measured stays None."""
    found = merged([ONE, TWO])
    assert (found["loop_lag_p99_ns"], found["cpu_ratio"], found["lost"]) == (9, 0.9, 3)
    assert found["worst"] == {"loop_lag_p99_ns": 1, "cpu_ratio": 0}
    assert found["littles"] == {"integral": 3.0, "sum": 3.5}
    assert found["steal_ratio"] is None
    assert found["bodies_late"] == 0, "from processes that did not count"
    assert merged([{**ONE, "bodies_late": 2}, {**TWO, "bodies_late": 3}])["bodies_late"] == 5
    assert [one["process"] for one in found["processes"]] == [0, 1]


def test_merging_once_more_changes_nothing() -> None:
    """Who merges what was merged before, for example of one process alone, gets the same."""
    for rows in ([ONE, TWO], [ONE]):
        assert merged([merged(rows)]) == merged(rows)
    assert merged([ONE])["worst"] == {}


def test_a_process_that_died_hides_no_sums() -> None:
    """The others' worst values stand; sums that lack its share are not known, and it is named."""
    found = merged([ONE, {"process": 7, "reason": "it died (exit code -9)"}])
    assert (found["loop_lag_p99_ns"], found["lost"], found["littles"]) == (5, None, None)
    assert found["processes"][1] == {"process": 7, "reason": "it died (exit code -9)"}
    assert merged([])["processes"] == []


def test_steal_comes_from_the_first_line_of_proc_stat(tmp_path: Path) -> None:
    """The eighth number, against the sum of all eight; a kernel without the file says nothing."""
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1\n")
    assert read_steal(str(tmp_path / "stat")) == (8, 36)
    assert read_steal(str(tmp_path / "none")) is None


def test_steal_is_measured_when_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections may have taken every descriptor by the time that the window begins."""

    async def main() -> None:
        meter = HealthMeter(monotonic)
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file is opened in the window"))
            meter.begin()
            await asyncio.sleep(0.02)
            meter.end()
        assert meter.signals().loop_lag_p99_ns is not None

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 100)), max_size=20))
def test_the_in_flight_integral_is_the_sum_of_the_clipped_lives(lives: list[tuple[int, int]]) -> None:
    """Exact in ramps and bursts, whatever order the changes come in."""
    counter = InFlight(0, 100)
    for start, length in lives:
        counter.change(start, +1)
        counter.change(start + length, -1)
    clipped = sum(counter.clip(start + length) - counter.clip(start) for start, length in lives)
    assert counter.integral == clipped
    assert counter.now == 0


@pytest.mark.parametrize("kind", ["native", "python"])
def test_the_kernels_alarm_rings_at_its_time_and_can_be_moved(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never before the time set last; a time in the past rings at once."""
    if kind == "python":
        monkeypatch.setattr(native, "extension", None)

    async def main() -> list[int]:
        rung: list[int] = []
        alarm = TimerfdAlarm(lambda: rung.append(monotonic()))
        alarm.set(monotonic() + 10**12)
        alarm.set(due := monotonic() + 3 * MS)
        while not rung:
            await asyncio.sleep(0.001)
        assert rung[0] >= due
        alarm.set(0)
        while len(rung) < 2:
            await asyncio.sleep(0.001)
        for _ in range(20):  # once is enough
            await asyncio.sleep(0)
        alarm.close()
        alarm.close()
        return rung

    assert len(asyncio.run(main())) == 2


def test_whom_it_wakes_may_fail() -> None:
    """Once for each time that it was set; the loop goes on."""

    async def main() -> int:
        rung, loop = 0, asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)

        def ring() -> None:
            nonlocal rung
            rung += 1
            raise RuntimeError

        alarm = TimerfdAlarm(ring)
        alarm.set(1)
        await asyncio.sleep(0.02)
        alarm.close()
        return rung

    assert asyncio.run(main()) == 1


def test_an_alarm_may_be_set_and_closed_by_whom_it_wakes() -> None:
    """It rings as often as it was set, and leaves nothing behind."""

    async def main() -> int:
        rung, over = 0, asyncio.get_running_loop().create_future()

        def ring() -> None:
            nonlocal rung
            rung += 1
            if rung < 3:
                alarm.set(monotonic() + MS)
            else:
                alarm.close()
                over.set_result(None)

        alarm = TimerfdAlarm(ring)
        alarm.set(1)
        await over
        await asyncio.sleep(0.005)
        return rung

    assert asyncio.run(main()) == 3
