"""The reports a person sees: terminal and page."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from results.judging import ClassGoal
from results.record import Record
from results.report import terminal, words
from results.report.charts import Scale, ceiling, count, seconds
from results.report.html import render
from results.report.pictures import ledger_bar
from results.run import RunData
from results.summary import judge


def printed(summary: dict[str, Any], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    terminal.show(summary, console)
    output: str = console.file.getvalue()  # type: ignore[attr-defined]
    return output


@pytest.mark.parametrize("width", [60, 80, 140])
def test_terminal_report_says_it_all_in_any_width(its_summary: dict[str, Any], width: int) -> None:
    """The client's verdict comes first, the run's last; no line is wider than the terminal."""
    text = printed(its_summary, width)
    assert text.startswith("client valid")
    assert text.index("Gates") < text.index("Classes") < text.index("Faults") < text.index("Findings")
    assert "attainment >= 90%" in text
    assert "verdict fail" in text
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_new_tokens_are_no_misses(its_summary: dict[str, Any]) -> None:
    """Where nothing missed there is no table of noughts beside a hit rate of 0 %, but the reason."""
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    causes = ("app_reset", "boundary", "expiry", "unexplained")
    for expired in (0, 64):
        missed = dict.fromkeys(causes, 0) | {"expiry": expired}
        attribution = {"missed_tokens": missed, "ledger": {"new": 51_536}}
        terminal.show_causes(its_summary | {"attribution": attribution}, console)
    text = console.file.getvalue()
    assert "No prompt token missed the cache; 51,536 were new" in text
    assert text.count("app_reset") == 1
    assert "51,536 more were new" in text


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [v for k, v in attrs if k in ("src", "href", "xlink:href", "action") and v]


def test_page_is_self_contained(run_with_everything: RunData, its_summary: dict[str, Any]) -> None:
    """No outside resource, no script, every picture well-formed with a title, below 1 MB."""
    page = render(run_with_everything, its_summary)
    assert len(page.encode()) < 1_000_000
    parser = _Page()
    parser.feed(page)
    assert parser.references == []
    assert "<script" not in page
    assert "url(" not in page
    assert "@import" not in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(pictures) == 7
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.findtext("title")
        assert root.get("role") == "img"


def test_page_puts_the_client_first(run_with_everything: RunData, its_summary: dict[str, Any]) -> None:
    """Whether the numbers may be believed stands before the verdict and the gates."""
    page = render(run_with_everything, its_summary)
    assert page.index("Verdict on the client") < page.index("Verdict on the run") < page.index("<h2>Gates")
    for expected in ("rush (burst)", "crash (kill_worker)", "chat SLO 1 s", "app_reset", "12 of system[0]"):
        assert expected in page


def test_page_of_almost_nothing(record: Callable[..., Record], run_of: Callable[..., RunData]) -> None:
    """A run of one failed request, and one of none, still make a page and a terminal report."""
    for records in ([record(0, "reset", after_ms=3)], []):
        run = run_of(records)
        assert "<h2>Classes" in render(run, judge(run))
        assert "client" in printed(judge(run), 80)


def test_names_are_escaped(record: Callable[..., Record], run_of: Callable[..., RunData]) -> None:
    """A class may be called anything."""
    run = run_of([record(0, ttft_ms=10, e2e_ms=20, class_="<b>[red]&")])
    run.judging = replace(run.judging, question="<script>x</script>")
    page = render(run, judge(run))
    assert "<b>[red]" not in page
    assert "<script" not in page
    assert "<b>[red]&" in printed(judge(run), 140)


@example(494555.0, 1.01)
@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e4))
def test_ticks_lie_on_the_axis_and_rise(low: float, factor: float) -> None:
    """Linear and logarithmic ticks are within the axis, in order, and not too many."""
    high = low * factor
    for scale in (Scale(0, high, 0, 100), Scale(low, high, 0, 100, log=True)):
        ticks = scale.ticks()
        assert ticks == sorted(ticks)
        assert len(ticks) <= 24
        assert all(-1 <= scale(t) <= 101 for t in ticks)
    assert high <= ceiling(high) * 1.001 <= high * 2.6


def test_durations_read_well() -> None:
    """The unit follows the size."""
    assert [seconds(v) for v in (0, 3e-9, 2e-6, 0.0123, 0.85, 0.9996, 1.234, 3600, -0.0071)] == [
        "0",
        "3 ns",
        "2 µs",
        "12.3 ms",
        "850 ms",
        "1 s",
        "1.23 s",
        "3,600 s",
        "-7.1 ms",
    ]


@given(st.floats(-1e12, 1e12))
def test_no_number_is_written_with_an_exponent(value: float) -> None:
    """Durations, rates and counts of any size a run can have read as people write them."""
    if abs(value) >= 1e-4 or value == 0:
        assert not any("e+" in text for text in (seconds(value), count(value), words.rate(value)))


def test_a_hundred_percent_is_said_of_nothing_less() -> None:
    """One failure among a million requests is not rounded away."""
    assert [words.percent(v) for v in (1.0, 0.999999, 0.9996, 0.5, 0.0, None)] == [
        "100 %",
        "99.99 %",
        "99.96 %",
        "50 %",
        "0 %",
        "–",
    ]


def test_gates_read_as_sentences(record: Callable[..., Record], run_of: Callable[..., RunData]) -> None:
    """Room between shares is in points, and a quantile without a value says what is missing."""
    run = run_of([record(0, ttft_ms=5, e2e_ms=9)], gates=("attainment >= 95%", "ttft.p99 < 1s"))
    attained, quantile = words.gate_rows(judge(run))
    assert (attained["margin"], attained["value"]) == ("5 pts", "100 %")
    assert "too few requests for an interval" in attained["reason"]
    assert quantile["reason"] == "too few requests for this quantile (n(1-q)<1)"


def test_the_attainment_that_gates_used_is_shown(
    run_of: Callable[..., RunData], record: Callable[..., Record]
) -> None:
    """Where requests cut off at the end count as misses for gates, the page says so beside the share."""
    records = [record(i, ttft_ms=5, e2e_ms=9) for i in range(6)]
    records += [record(6 + i, outcome="censored_by_run_end", after_ms=500) for i in range(4)]
    run = run_of(records)
    assert "60 % for gates" in render(run, judge(run))


def test_wide_pictures_scroll_on_small_screens(
    run_with_everything: RunData, its_summary: dict[str, Any]
) -> None:
    """A picture of the page's width is scrolled where the screen is narrow, not shrunk beyond reading."""
    page = render(run_with_everything, its_summary)
    wide = re.findall(r'<div class="scroll"><svg [^>]*class="chart wide"', page)
    assert len(wide) == page.count('class="chart wide"') >= 3


def test_names_in_the_ledger_bar_fit_their_pieces() -> None:
    """A piece too short for its name is left to the legend."""
    bar = ledger_bar({"read": 930.0, "unexplained": 70.0})
    assert bar is not None
    assert "read 93%" in bar
    assert "unexplained 7%" not in bar


def test_gates_alone_come_after_the_client(its_summary: dict[str, Any]) -> None:
    """Who asks for gates only reads first whether they can be decided."""
    console = Console(file=io.StringIO(), width=120)
    terminal.show_gates(its_summary, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("client valid")
    assert text.index("client valid") < text.index("attainment >= 90%")


def test_what_the_stamps_are_worth_is_said(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """Whose stamps, how exact, how many times are upper bounds, and on whose CPUs; in both reports."""
    records = [record(i, due_ms=40 * i, ttft_ms=10, gaps_ms=[1.0, 0.0], coalesced=1) for i in range(100)]
    for one in records:
        one.stamp, one.skew_ns, one.conn_new = "kernel", 2_500, one.id < 5
    run = run_of(records, timeouts={"connect": 5.0, "total": 60.0})
    run.signals["loop_lag_p99_ns"] = 1_000_000
    run.manifest["co_located"] = True
    summary = judge(run)
    for text in (printed(summary, 400), render(run, summary)):
        assert "stamped by the kernel; its clock converted to within 2.5 µs" in text
        assert "33.3 % of the token events shared a read" in text
        assert "5 % of the requests opened a connection" in text
        assert "it shared the target" in text
        assert "The client gave up after: connect 5 s, total 60 s." in text
        assert "its timing error is at most 1 ms" in text


def test_an_error_without_a_bound_is_not_called_zero(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """A live run whose loop lag nobody measured says so in place of a number."""
    summary = judge(run_of([record(0, ttft_ms=5, e2e_ms=9)]))
    assert "its timing error has no bound (H2 not measured)" in words.client_words(summary)


def test_load_processes_and_the_worst_of_them_are_shown(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """With several processes the page has a line for each, and rows name the one they are of."""
    run = run_of([record(i, due_ms=40 * i, ttft_ms=10, e2e_ms=20) for i in range(100)])
    known = {"loop_lag_p99_ns": 1_500_000, "gc_pause_max_ns": 0, "cpu_ratio": 0.5, "lost": 0}
    dead = {"process": 2, "reason": "it died (exit code -9)"}
    run.signals = {"cpu_ratio": 0.9, "worst": {"cpu_ratio": 1}}
    run.signals["processes"] = [{"process": 0} | known, {"process": 1} | known | {"cpu_ratio": 0.9}, dead]
    page = render(run, judge(run))
    assert "<h3>Load processes</h3>" in page
    assert page.count("1.5 ms") >= 2
    assert "load process 1" in page
    run.signals["processes"] = [{"process": 0} | known]
    assert "<h3>Load processes</h3>" not in render(run, judge(run))


def test_a_closed_loop_is_labelled_and_shown_by_its_own_clock(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """Its name says so wherever it stands, and its latencies are those from the send."""
    records = [record(i, class_="ab"[i % 2], due_ms=40 * i, ttft_ms=10, e2e_ms=20) for i in range(100)]
    run = run_of(records, classes={"a": ClassGoal(open_loop=False), "b": ClassGoal()})
    summary = judge(run)
    page, text = render(run, summary), printed(summary, 140)
    assert "a (closed loop)" in page
    assert "a (closed loop)" in text
    assert "<td>a (closed loop)</td><td>ttft</td>" in page
    assert "<td>b</td><td>ttft_sched</td>" in page


def test_limits_and_impossible_times_stand_beside_the_values(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """Every rule shows both its limits; a clock fault is told in words."""
    run = run_of([record(i, due_ms=40 * i, lag_ms=-1, ttft_ms=10, e2e_ms=20) for i in range(100)])
    summary = judge(run)
    rows = {row["id"]: row for row in words.health_rows(summary)}
    assert (rows["H1"]["limit"], rows["H1"]["degraded"], rows["H4"]["degraded"]) == ("5 ms", "10 ms", "any")
    assert "the send before its time, by up to 1 ms" in rows["H1"]["reason"]
    assert "the send before its time" in render(run, summary)
    assert printed(summary, 140).startswith("client invalid")


def test_how_a_trace_was_replayed_is_said_without_the_path_of_its_file(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """Spread, thinning and scaling stand in the summary and under the classes, wherever the file lies."""
    trace = {"class": "default", "type": "mooncake", "file": "/home/me/t.jsonl", "says": ["Thinned: 2 of 4."]}
    data = replace(run_of([record(0, ttft_ms=5, e2e_ms=9)]), manifest={"traces": [trace | {"rows": 4}]})
    summary = judge(data)
    assert summary["replays"] == [trace | {"file": "t.jsonl"}]
    for shown in (printed(summary, 140), render(data, summary)):
        assert "default replays mooncake t.jsonl. Thinned: 2 of 4." in shown
        assert "/home/me" not in shown


def test_a_broken_cache_contract_says_why_also_of_a_foreign_target(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """Nothing was attributed, and still it is said that the cache was not cold, and how that was seen."""
    records = [record(i, due_ms=1000 * i, ttft_ms=5, e2e_ms=9, cache_read=64, n_in=80) for i in range(3)]
    for one in records:
        one.prompt_total = 80
    data = run_of(records, cache="cold")
    summary = judge(data)
    reason = summary["cache"]["contract"]["reason"]
    assert summary["cache"]["contract"]["state"] == "violated"
    for shown in (printed(summary, 200), render(data, summary)):
        assert f"cache contract: cold, violated ({reason})" in shown


def test_names_of_equal_bounds_stand_below_each_other(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """Three classes with one SLO far above the picture: each name can be read."""
    names = ("a", "b", "c")
    records = [record(i, due_ms=500 * i, ttft_ms=5, e2e_ms=9, class_=name) for i, name in enumerate(names)]
    data = run_of(records, classes={name: ClassGoal(slo={"ttft_sched": 2.0}) for name in names})
    heights = re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>[abc] SLO 2 s ↑', render(data, judge(data)))
    assert len(heights) == 3
    assert min(abs(float(a) - float(b)) for a, b in combinations(heights, 2)) >= 13
