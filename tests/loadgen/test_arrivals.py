"""The laws of the arrival processes and the schedule they are sent by (case C-14)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadgen.arrivals import ARRIVALS, Burst, Constant, Poisson
from loadgen.driver import Driver
from loadgen.plan import Arrival, Load, Phases, Plan
from loadgen.render import Renderer
from loadgen.streams import stream
from loadgen.targets import OpenAIChat
from loadgen.text import Prompter, TextMaker
from loadgen.transport import HttpRequest, Sink
from loadgen.workload import Fixed

MS = 1_000_000
C14 = json.loads((Path(__file__).parent.parent / "cases" / "loadgen" / "C-14.json").read_text())
VARIANTS = {v["id"].partition("/")[2]: v for v in C14["variants"]} | {"drift": C14}

N, RATE = 40_000, 100.0


def times(arrival: Arrival, seed: int = 1, n: int = N, span: float = 420.0) -> NDArray[np.float64]:
    """The first ``n`` arrivals in s."""
    due = arrival.due_times(span, stream(seed, "test"))
    assert len(due) >= n
    return due[:n] / 1e9


def law(t: NDArray[np.float64]) -> dict[str, float]:
    gaps = np.diff(t)
    centred = gaps - gaps.mean()
    lag1 = float((centred[1:] * centred[:-1]).sum() / max((centred**2).sum(), 1e-30))
    found = {"cv": float(gaps.std() / gaps.mean()), "lag1": lag1, "rate": len(t) / float(t[-1])}
    for width in (0.1, 1.0):
        counts = np.bincount((t / width).astype(int), minlength=1)[:-1]
        found[f"idc_{width:g}s"] = float(counts.var() / counts.mean())
    whole = np.abs(t - np.rint(t)) < 1e-9
    return found | {"whole_second": float(whole.mean())}


def is_poisson(found: dict[str, float]) -> bool:
    expect = VARIANTS["poisson"]["expect"]
    return (
        expect["gap_cv"][0] <= found["cv"] <= expect["gap_cv"][1]
        and abs(found["lag1"]) <= expect["gap_lag1_abs_max"]
        and expect["idc_0.1s"][0] <= found["idc_0.1s"] <= expect["idc_0.1s"][1]
        and expect["idc_1s"][0] <= found["idc_1s"] <= expect["idc_1s"][1]
        and found["whole_second"] < 0.001
    )


@pytest.mark.parametrize("seed", VARIANTS["poisson"]["inputs"]["seeds"])
def test_poisson_arrivals_pass_the_law_test(seed: int) -> None:
    """Gaps are exponential and independent, counts are Poisson, the rate is the asked one."""
    found = law(times(Poisson(RATE), seed))
    assert is_poisson(found), found
    assert abs(found["rate"] / RATE - 1) <= VARIANTS["poisson"]["expect"]["mean_rate_rel_error_max"]
    assert np.array_equal(times(Poisson(RATE), seed), times(Poisson(RATE), seed))


def test_constant_arrivals_have_no_spread() -> None:
    """`constant` does not draw exponential gaps."""
    assert law(times(Constant(RATE)))["cv"] <= VARIANTS["constant"]["expect"]["gap_cv_max"]


def test_the_law_test_finds_workers_that_share_a_seed() -> None:
    """Negative control: ten workers with one seed are ten times too bursty at the right mean rate."""
    expect = VARIANTS["same-seed-workers"]["expect"]
    one = times(Poisson(RATE / 10), n=N // 10)
    found = law(np.sort(np.repeat(one, 10) + np.tile(np.arange(10) * 1e-6, len(one))))
    assert found["idc_1s"] >= expect["idc_1s_at_least"]
    assert not is_poisson(found)


def test_the_law_test_finds_per_second_blocks() -> None:
    """Negative control: one arrival exactly on each whole second gives itself away."""
    per_second = np.sort(stream(1, "blocks").uniform(0, 1, (N // 100, 100)), axis=1)
    per_second[:, 0] = 0.0
    found = law(np.sort((per_second + np.arange(N // 100)[:, None]).ravel()))
    assert found["whole_second"] == pytest.approx(
        VARIANTS["second-boundary"]["expect"]["share_on_whole_second"]
    )
    assert not is_poisson(found)


def test_a_poisson_run_is_not_rescaled_to_its_mean() -> None:
    """Half of a run of mean 100 has a count variance of about 50; conditioned on the total it were 25."""
    halves = [
        int((Poisson(100.0).due_times(1.0, stream(seed, "half")) < 500 * MS).sum()) for seed in range(4000)
    ]
    expect = VARIANTS["conditioned"]["expect"]["poisson_first_half_count_variance_about"]
    assert np.var(halves) == pytest.approx(expect, rel=0.1)


def test_a_burst_is_all_at_once_and_again_after_its_interval() -> None:
    """`size` arrivals at 0, `every`, 2 `every`; with `over` they are spread but stay inside it."""
    rng = stream(1, "burst")
    assert Burst(3, every=2.0).due_times(5.0, rng).tolist() == [
        t * 10**9 for t in (0, 0, 0, 2, 2, 2, 4, 4, 4)
    ]
    assert Burst(2, at=1.0).due_times(5.0, rng).tolist() == [10**9] * 2
    spread = Burst(50, at=1.0, over=0.5).due_times(5.0, rng)
    assert len(set(spread.tolist())) == 50
    assert 10**9 <= spread.min() < spread.max() <= 1.5 * 10**9


@pytest.mark.parametrize("name", sorted(ARRIVALS))
@given(span=st.floats(0.001, 20.0), rate=st.floats(0.1, 50.0), seed=st.integers(0, 2**32))
def test_every_process_keeps_its_contract(name: str, span: float, rate: float, seed: int) -> None:
    """Times are sorted, inside [0, span) and the same for the same stream."""
    arrival = Burst(3, every=1 / rate) if name == "burst" else ARRIVALS[name](rate=rate)  # type: ignore[call-arg]
    due = arrival.due_times(span, stream(seed, name))
    assert due.dtype == np.int64
    assert (np.diff(due) >= 0).all()
    assert ((due >= 0) & (due < round(span * 1e9))).all()
    assert np.array_equal(due, arrival.due_times(span, stream(seed, name)))


@pytest.mark.parametrize("make", [lambda: Constant(0.0), lambda: Poisson(-1.0), lambda: Burst(0)])
def test_a_rate_or_size_of_zero_is_refused(make: Callable[[], Arrival]) -> None:
    """Nothing arrives at rate 0; whoever wants no load leaves the line out."""
    with pytest.raises(ValueError, match="above 0"):
        make()


# --- the schedule: absolute deadlines on a clock that the test moves by hand


class ManualClock:
    """Time passes by `cost` in each send, and while the generator is blocked."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.now = 0
        self.due: int | None = None
        self.starts: list[float] = []
        self._cost = round(inputs["send_cost_ms"] * MS)
        self._errors = list(inputs.get("timer_error_ms", []))
        self._blocked = [round(t * MS) for t in inputs.get("blocked_ms", (0, 0))]
        self._rung_for: int | None = None

    def __call__(self) -> int:
        return self.now

    def set(self, due: int) -> None:
        self.due = due

    def close(self) -> None: ...

    def send(self, request: HttpRequest, sink: Sink) -> Callable[[], None]:
        self.starts.append(self.now / MS)
        self.now += self._cost
        sink.closed(self.now, "connect_error", "nobody there")
        return lambda: None

    def ring(self) -> None:
        """Move to the time of the alarm, with the timer's error the first time it is set to it."""
        assert self.due is not None
        at = self.due
        sends = len(self.starts)
        if (
            self._rung_for != at
            and self._errors
            and sends < len(self._errors)
            and at == round(sends * 2 * MS)
        ):
            at += round(self._errors[sends] * MS)
        self._rung_for = self.due
        if self._blocked[0] <= at < self._blocked[1]:
            at = self._blocked[1]
        self.now = max(self.now, at)


@pytest.mark.parametrize("name", ["drift", "catch-up", "never-early"])
def test_sends_keep_to_absolute_times(name: str) -> None:
    """Slow sends do not drift, a blocked generator catches up at once, an early timer sends nothing."""
    case = VARIANTS[name]
    inputs, expect = case["inputs"], case["expect"]
    n, rate = inputs["n"], inputs["rate_per_s"]
    plan = Plan.make([Load("c", Constant(rate), Fixed(4, 1))], Phases(window=n / rate, drain=1.0), 1)
    clock = ManualClock(inputs)
    renderer = Renderer(Prompter(TextMaker()), OpenAIChat("m"))
    closed: list[int] = []
    driver = Driver(plan, renderer, clock, clock, 0, lambda e, _: closed.append(e.record.id))  # type: ignore[arg-type]
    driver.start(clock)
    while len(closed) < n:
        clock.ring()
        driver.wake()
    late = [start - (shot.due_ns or 0) / MS for start, shot in zip(clock.starts, plan.shots, strict=True)]
    assert min(late) >= 0
    if "start_ms" in expect:
        assert clock.starts == pytest.approx(expect["start_ms"])
    else:
        assert (clock.starts[0], clock.starts[-1]) == (expect["first_start_ms"], expect["last_start_ms"])
        assert max(late) == expect["lateness_max_ms"]
    if "lateness_ms_nonzero" in expect:
        assert [x for x in late if x > 0] == pytest.approx(expect["lateness_ms_nonzero"])
