"""Rows of the side-by-side benchmark: how they are kept, when a tool is given up, what the tables say."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.__main__ import arguments
from benchmarks.peers.picture import picture
from benchmarks.peers.rows import COLUMNS, Kept, Row, gives_up, header, line, markdown, signed
from benchmarks.peers.session import Session
from benchmarks.peers.tool import Ask, Quantiles, Reported, Tool
from loadgen.reference.group import ReferenceServer
from loadgen.reference.script import Script

ASK = Ask(200.0, Script(), 12.0, 2.0, 1.0, 50, "poisson", 0, Path("/model"), Path("/hub"), "a/b")


def row(tool: str = "aiperf", asked: float = 200.0, **more: Any) -> Row:
    said, true = Quantiles(53.0, 126.8, 10.0, 11.2), Quantiles(50.0, 50.1, 10.0, 10.1)
    usual = Row(tool, "1.0", asked, "poisson", said, true, delivered=asked * 0.99, load_after=0.5)
    return replace(usual, **more)


def test_off_is_reported_minus_true() -> None:
    """And unknown where either is."""
    off = row().off
    assert off.ttft_p50 == pytest.approx(3.0)
    assert off.ttft_p99 == pytest.approx(76.7)
    half = row(said=Quantiles(53.0)).off
    assert half.ttft_p50 == pytest.approx(3.0)
    assert (half.ttft_p99, half.tpot_p50, half.tpot_p99) == (None, None, None)


def test_rows_survive_their_file(tmp_path: Path) -> None:
    """A row that was measured is found again under the same tool, version, rate and settings only."""
    kept = Kept.read(tmp_path / "rows.json")
    kept.add(row())
    kept.add(row(asked=400.0, said=Quantiles(), why="exit code 1"))
    again = Kept.read(tmp_path / "rows.json")
    assert again.rows == kept.rows
    assert again.find("aiperf", "1.0", 200.0, "poisson") == row()
    for other in (
        ("vllm", "1.0", 200.0, "poisson"),
        ("aiperf", "1.1", 200.0, "poisson"),
        ("aiperf", "1.0", 201.0, "poisson"),
        ("aiperf", "1.0", 200.0, "constant"),
    ):
        assert again.find(*other) is None
    assert Kept.read(tmp_path / "rows.json", fresh=True).rows == []


def test_a_tool_is_given_up_after_two_rates_in_a_row() -> None:
    """One rate that was not reached may be a hiccup; no result counts as not reached."""
    good, slow, dead = row(), row(delivered=100.0), row(why="exit code 1")
    assert not gives_up([])
    assert not gives_up([slow])
    assert not gives_up([slow, slow, good])
    assert not gives_up([good, slow])
    assert gives_up([good, slow, dead])
    assert gives_up([slow, row(delivered=None)])


@dataclass(frozen=True)
class Silent:
    """A tool that is never really run."""

    name: str = "silent"
    version: str = "1.0"

    def run(self, ask: Ask, server: ReferenceServer, folder: Path) -> Reported:
        raise AssertionError("the session runs tools through measure")


@dataclass
class Measured:
    """Delivers up to ``limit`` streams/s, and remembers what it was asked."""

    limit: float
    asked: list[float] = field(default_factory=list)

    def __call__(self, tool: Tool, ask: Ask, settings: str) -> Row:
        self.asked.append(ask.rate)
        return row(tool.name, ask.rate, settings=settings, delivered=min(self.limit, ask.rate))


def test_a_session_stops_where_a_tool_ends_and_says_so(tmp_path: Path) -> None:
    """Rates above two failures are skipped and named."""
    said: list[str] = []
    fake = Measured(limit=300.0)
    session = Session(ASK, (100.0, 200.0, 400.0, 800.0, 1200.0), Kept(tmp_path / "r.json"), fake, said.append)
    rows, skipped = session.all_of(Silent())
    assert [one.asked for one in rows] == fake.asked == [100.0, 200.0, 400.0, 800.0]
    assert skipped == [1200.0]
    assert said[-1].startswith("silent: 1200 skipped")


def test_a_session_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    """What is in the file is shown, not measured again."""
    path, rates, said = tmp_path / "r.json", (100.0, 200.0), list[str]()
    Session(ASK, rates[:1], Kept(path), Measured(1e9), said.append).all_of(Silent())
    fake = Measured(1e9)
    rows, _ = Session(ASK, rates, Kept.read(path), fake, said.append).all_of(Silent())
    assert fake.asked == [200.0]
    assert [one.asked for one in rows] == [100.0, 200.0]
    longer = Measured(1e9)
    Session(replace(ASK, seconds=30.0), rates, Kept.read(path), longer, said.append).all_of(Silent())
    assert longer.asked == [100.0, 200.0]


def test_the_line_of_a_row_says_what_is_off() -> None:
    """In the columns of the header; a tool without a result says why below."""
    words = line(row(core_busy=0.66, load_before=0.1))
    for cell in ("aiperf", "99%", "+3.00", "+76.70", "66%", "0.1 → 0.5"):
        assert cell in words
    assert len(header()) == sum(width for _, width in COLUMNS) + 2 * (len(COLUMNS) - 1)
    failed = line(row(said=Quantiles(), why="exit code 1; it said nothing"))
    assert failed.endswith("exit code 1; it said nothing")
    assert "–" in failed


def test_the_tables_for_a_readme_have_a_column_for_each_tool() -> None:
    """Rates that a tool was spared stand as skipped, failures as no result."""
    rows = [row(), row(asked=400.0, why="dead", delivered=None), row("headrace"), row("headrace", 800.0)]
    ttft, tpot = markdown(rows).split("\n\n")
    lines = ttft.splitlines()
    assert lines[0] == "| TTFT off p50 / p99, share delivered | aiperf 1.0 | headrace 1.0 |"
    assert lines[2] == "| 200 streams/s | +3.00 / +76.70 ms, 99% | +3.00 / +76.70 ms, 99% |"
    assert lines[3] == "| 400 streams/s | no result, – | skipped |"
    assert lines[4] == "| 800 streams/s | skipped | +3.00 / +76.70 ms, 99% |"
    assert "+0.00 / +1.10 ms" in tpot


def test_what_rounds_to_zero_has_no_minus() -> None:
    assert [signed(value, 2) for value in (-0.004, 0.0, -0.006, None)] == ["+0.00", "+0.00", "-0.01", "–"]


def test_the_picture_stands_alone() -> None:
    """Well-formed SVG with a curve for each tool and nothing from outside; none without rows."""
    assert picture([]) is None
    rows = [row("a", rate) for rate in (100.0, 200.0)] + [row("b", 100.0, said=Quantiles())]
    drawn = picture(rows)
    assert drawn is not None
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == 4
    assert 'class="curve t0 p99"' in drawn
    assert drawn.count("http") == 1


def test_rates_rise_and_tools_are_known(tmp_path: Path) -> None:
    """Whatever order they are given in; a tool that nobody knows is refused with those that there are."""
    asked = arguments(["--rates", "400,100", "--only", "headrace,vllm", "--out", str(tmp_path)])
    assert asked.rates == [100.0, 400.0]
    assert asked.only == ["headrace", "vllm"]
    assert asked.seconds == 12.0
    assert arguments(["--quick"]).rates == [200.0]
    with pytest.raises(SystemExit) as refused:
        arguments(["--only", "k6"])
    assert refused.value.code == 2
