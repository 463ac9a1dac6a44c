"""The schedule that sends keep to: absolute deadlines, on a clock that the test moves by hand (C-14)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.arrivals import Constant
from loadgen.desk import InlineDesk
from loadgen.driver import Driver
from loadgen.plan import Load, Phases, Plan
from loadgen.render import Renderer
from loadgen.targets import OpenAIChat
from loadgen.text import Prompter, TextMaker
from loadgen.transport import HttpRequest, Sink
from loadgen.workload import Fixed

MS = 1_000_000
C14 = json.loads((Path(__file__).parent.parent / "cases" / "loadgen" / "C-14.json").read_text())
VARIANTS = {v["id"].partition("/")[2]: v for v in C14["variants"]} | {"drift": C14}


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
    closed: list[int] = []
    renderer = Renderer(Prompter(TextMaker()), OpenAIChat("m"))
    desk = InlineDesk(plan.shots, plan.phases, renderer, lambda e, _: closed.append(e.record.id))
    driver = Driver(plan.shots, plan.phases, desk, renderer.dialect, clock, clock, 0)
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
