"""What a person sees while a run goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace import console
from headrace.console import Lines, Silent, Tick, Watch


def tick(elapsed: float, sent: int, ttft_ms: float | None) -> Tick:
    return Tick(elapsed, 30.0, "window", sent, 100, 3, sent - 3, 1, ttft_ms)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=text, force_terminal=True, width=120, height=30))
    return text


def test_the_live_view_draws_rates_latencies_and_notes(screen: io.StringIO) -> None:
    """On a terminal: where the run stands, a sparkline of sends and of TTFT, faults above it."""
    watch = Watch()
    for second, ttft in enumerate((None, 80.0, 240.0)):
        watch.tick(tick(second, 10 * (second + 1), ttft))
    watch.note("  2.0 s  crash (kill_worker) injected")
    watch.close()
    shown = screen.getvalue()
    for words in ("sent 30/100", "in flight 3", "TTFT p50", "240 ms", "crash"):
        assert words in shown
    assert "█" in shown


def test_without_a_terminal_there_are_plain_lines(screen: io.StringIO) -> None:
    """In a log: each stage, each note, and the load every ten seconds only."""
    lines = Lines()
    lines.step("starting the engine")
    for second in range(25):
        lines.tick(tick(float(second), second, None))
    lines.note("healed")
    lines.close()
    shown = screen.getvalue().splitlines()
    assert [line for line in shown if line.startswith("window")] == [
        line for line in shown if line.startswith(("window 0/", "window 10/", "window 20/"))
    ]
    assert len(shown) == 5


def test_quiet_is_quiet(screen: io.StringIO) -> None:
    """With --quiet nothing is shown."""
    view = console.view(quiet=True)
    view.step("starting")
    view.tick(tick(1.0, 1, None))
    view.note("fault")
    view.close()
    assert isinstance(view, Silent)
    assert screen.getvalue() == ""


@pytest.mark.parametrize("values", [[], [None, None], [0.0, 0.0], [1.0, None, 4.0]])
def test_a_sparkline_has_one_cell_for_each_value(values: list[float | None]) -> None:
    """Also of nothing, of gaps, and of zeros."""
    assert len(console._spark(values)) == len(values)
