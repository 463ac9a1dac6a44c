"""`bench sweep` on the simulated engine, in virtual time: from the command to its files."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from headrace.commands_sweep import register
from headrace.console import Silent, Tick
from headrace.errors import UsageFailed
from headrace.prepare import load_scenario
from headrace.sweep import conduct, show
from headrace.sweep.axes import parse_axes
from headrace.sweep.book import Book, resumed_book
from headrace.sweep.design import SweepOptions, make_design
from headrace.sweep.levels import LevelError, read, read_rates, read_users
from headrace.sweep.progress import Progress, left
from results.sweep.columns import COLUMNS
from results.sweep.search import ask
from results.sweep.spec import history, of_cell

SMALL = """\
# Up to which rate does a small simulated engine hold?
headrace: 1
seed: 5
target:
  engine:
    model: simulated
    memory: {kv_blocks: 128}
    scheduler: {max_step_tokens: 64, prefill_chunk: 32, max_running: 8}
    cost: {a: 10ms, b: 1ms, c: 1ms}
classes:
  ping: {limits: {input: 128, output: 8, total: 128}, slo: {ttft_sched: 400ms}}
  pong: {limits: {input: 128, output: 8, total: 128}}
phases: {window: 4s, drain: 4s}
load:
  - {class: ping, arrival: {type: constant, rate: 4/s}, workload: {type: fixed, input: 60, output: 4}}
  - {class: pong, arrival: {type: poisson, rate: 1/s}, workload: {type: fixed, input: 20, output: 4}}
gates:
  - ping.ttft_sched.p50 < 300ms
  - kv.leaked_blocks == 0
  - invariants.failed == 0
"""
QUICK = ("--virtual", "--step-window", "3s", "--longest-window", "6s", "--width", "100%")
RATES = ("--axis", "ping.rate=4:16")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    made = typer.Typer()
    made.callback()(lambda: None)
    register(made)
    return made


def called(app: typer.Typer, *arguments: str | Path) -> tuple[dict[str, Any], str, str]:
    """(last line, what stands before it, stderr) of one command; its exit code is that of the line."""
    result = CliRunner().invoke(app, ["sweep", *map(str, arguments)])
    before, _, line = result.stdout.rstrip("\n").rpartition("\n")
    last = json.loads(line)
    assert result.exit_code == last["exit"], result.output
    return last, before, result.stderr


def document(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return read


@pytest.fixture(scope="module")
def swept(app: typer.Typer, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole search."""
    folder = tmp_path_factory.mktemp("swept") / "out"
    last, shown, said = called(app, small, *RATES, *QUICK, "--out", folder)
    assert last == {"verdict": "pass", "client": "valid", "interrupted": False, "exit": 0, "run": str(folder)}
    assert "ping.rate: holds" in shown
    assert "Safe operating point" in shown
    assert "more point" in said
    return folder


def test_a_search_finds_a_bracket_and_a_safe_point(swept: Path) -> None:
    """The two ends were run twice, with two seeds; the safe point is below the passing end."""
    (cell,) = document(swept)["cells"]
    assert (cell["kind"], cell["complete"]) == ("bracket", True)
    low, high = cell["bracket"]["pass"], cell["bracket"]["fail"]
    assert 4 <= low < high <= 16
    assert high <= low * 2 or cell["undecided"] or cell["disagreed"]
    assert cell["bracket"]["pass_confirmed"]
    assert cell["bracket"]["fail_confirmed"]
    assert cell["safe"]["value"] <= low
    runs = document(swept)["runs"]
    for end in (low, high):
        assert {run["seed"] for run in runs if run["value"] == end} == set(document(swept)["sweep"]["seeds"])


def test_a_short_window_says_that_saturation_was_not_tested(swept: Path) -> None:
    """In the words, the notes and the page; no knee is made up."""
    whole = document(swept)
    assert whole["cells"][0]["knee"] == {"below": None, "above": None, "contradicted": []}
    assert "Over-saturation was not tested" in whole["cells"][0]["words"]
    assert any("cannot tell over-saturation" in note for note in whole["notes"])
    assert "cannot tell over-saturation" in (swept / "sweep.html").read_text()


def test_every_point_has_every_column_by_class_and_in_all(swept: Path) -> None:
    """A number, or null with a reason; the parquet has the same numbers."""
    runs = document(swept)["runs"]
    table = pd.read_parquet(swept / "sweep.parquet")
    assert len(table) == 3 * len(runs)
    for run in runs:
        assert set(run["rows"]) == {"ping", "pong", "all"}
        for name, row in run["rows"].items():
            assert set(row) == {*COLUMNS, "reasons"}
            assert {column for column in COLUMNS if row[column] is None} == set(row["reasons"])
            stored = table[(table["run"] == run["run"]) & (table["class"] == name)].iloc[0]
            assert (None if pd.isna(stored["good_rate"]) else stored["good_rate"]) == row["good_rate"]
        known = run["rows"]["all"]
        for column in ("kv_max", "prefill_tokens_s", "decode_tokens_s", "allocation_failures", "preemptions"):
            assert known[column] is not None
        assert (swept / run["run"] / "summary.json").exists()


def test_asked_rates_are_those_of_the_axis(swept: Path) -> None:
    """What was asked of the class is what the plan had; the other class keeps its own rate."""
    for run in document(swept)["runs"]:
        assert run["rows"]["ping"]["asked_rate"] == pytest.approx(run["value"], rel=0.3)
        assert run["rows"]["pong"]["asked_rate"] < 4


def test_two_sweeps_are_the_same_bytes(swept: Path, app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """One seed, one document, wherever it lies."""
    called(app, small, *RATES, *QUICK, "--out", tmp_path / "again", "--quiet")
    assert (tmp_path / "again" / "sweep.json").read_bytes() == (swept / "sweep.json").read_bytes()
    assert (tmp_path / "again" / "sweep.html").read_bytes() == (swept / "sweep.html").read_bytes()


def test_the_page_stands_alone(swept: Path) -> None:
    """No outside resource; the only links are the points' own reports, which are there."""
    page = (swept / "sweep.html").read_text()
    assert "<script" not in page
    assert "url(" not in page
    assert page.count("<svg") == 1
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links
    for link in links:
        assert (swept / link.replace("%3D", "=").replace("%2C", ",")).exists()


def test_a_grid_is_crossed(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """Each pair of values is one point; --json prints the document."""
    axes = ("--axis", "engine.scheduler.prefill_chunk=16,32", "--axis", "ping.rate=4,32")
    last, printed, _ = called(app, small, *axes, *QUICK, "--out", tmp_path / "grid", "--json")
    whole = json.loads(printed)
    assert whole == document(tmp_path / "grid")
    assert last["verdict"] == "pass"
    at = [(cell["at"]["engine.scheduler.prefill_chunk"], cell["at"]["ping.rate"]) for cell in whole["cells"]]
    assert at == [("16", "4/s"), ("16", "32/s"), ("32", "4/s"), ("32", "32/s")]
    assert [cell["kind"] for cell in whole["cells"]] == ["pass", "fail", "pass", "fail"]
    assert whole["best"] == []
    resolved = {(tmp_path / "grid" / run["run"] / "scenario.yaml").read_text() for run in whole["runs"]}
    assert len(resolved) >= 4
    assert sum("prefill_chunk: 16" in text for text in resolved) >= 2


def test_a_long_window_tells_over_saturation(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """In 30 s: calm at 4/s, growing without end at 16/s, by class as well as in all."""
    windows = ("--virtual", "--step-window", "30s", "--longest-window", "30s")
    called(app, small, "--axis", "ping.rate=4,16", *windows, "--out", tmp_path / "long", "--quiet")
    whole = document(tmp_path / "long")
    assert [run["decision"] for run in whole["runs"]] == ["pass", "fail"]
    for run, over in zip(whole["runs"], (False, True), strict=True):
        assert run["over_saturated"] is over
        assert run["rows"]["ping"]["over_saturated"] is run["rows"]["all"]["over_saturated"] is over
    assert whole["notes"] == []


def test_every_cell_is_searched(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """A search for each crossed value, compared; a further span is crossed at its doublings."""
    axes = ("--axis", "ping.rate=4:8", "--axis", "engine.scheduler.max_running=2:4")
    called(app, small, *axes, *QUICK, "--out", tmp_path / "cells", "--quiet")
    whole = document(tmp_path / "cells")
    assert [cell["at"]["engine.scheduler.max_running"] for cell in whole["cells"]] == ["2", "4"]
    safe = [cell["safe"]["value"] for cell in whole["cells"]]
    assert whole["best"]
    assert {safe[i] for i in whole["best"]} == {max(value for value in safe if value is not None)}


def test_a_lowest_value_that_fails_is_exit_1(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """Two runs of it are enough, and nothing above is tried."""
    last, shown, _ = called(app, small, "--axis", "ping.rate=40:80", *QUICK, "--out", tmp_path / "low")
    assert (last["verdict"], last["exit"]) == ("fail", 1)
    assert "fails already at 40/s" in shown


class Impatient(Silent):
    """Presses Ctrl-C in the middle of a run, once."""

    pressed = False

    def tick(self, tick: Tick) -> None:
        if tick.elapsed > 1 and not Impatient.pressed:
            Impatient.pressed = True
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_sweep_goes_on(
    swept: Path, app: typer.Typer, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the third run: two runs are kept, exit 4. Resumed, they are not run again, and the end is
    the same as without the interruption."""
    folder, begun = tmp_path / "cut", 0

    def view(book: Book, quiet: bool) -> Silent:
        nonlocal begun
        begun += 1
        return Impatient() if begun == 3 else Silent()

    Impatient.pressed = False
    monkeypatch.setattr(show, "_view", view)
    last, shown, _ = called(app, small, *RATES, *QUICK, "--out", folder)
    assert (last["exit"], last["interrupted"], last["verdict"]) == (4, True, "inconclusive")
    assert "--resume" in shown
    kept = document(folder)
    assert (len(kept["runs"]), kept["complete"]) == (2, False)
    assert (folder / "sweep.html").exists()
    begun = 100
    last, _, _ = called(app, small, "--resume", folder)
    assert last["exit"] == 0
    whole, plain = document(folder), document(swept)
    assert begun - 100 == len(plain["runs"]) - 2
    for mine, other in zip(whole["runs"], plain["runs"], strict=True):
        assert mine | {"run": ""} == other | {"run": ""}
    assert whole["cells"] == plain["cells"]


def test_a_resumed_sweep_is_the_same_sweep(swept: Path, small: Path, tmp_path: Path) -> None:
    """Other axes, another scenario file, or a file that changed: refused, with what differs."""
    with pytest.raises(UsageFailed, match=r"axes: .*4:16.* -> .*4:64"):
        resumed_book(swept, SweepOptions(str(small), axes=("ping.rate=4:64",)))
    with pytest.raises(UsageFailed, match="scenario: "):
        resumed_book(swept, SweepOptions("other.yaml"))
    with pytest.raises(UsageFailed, match="holds no sweep"):
        resumed_book(tmp_path, SweepOptions(str(small)))
    before = small.read_text()
    try:
        small.write_text(before.replace("max_running: 8", "max_running: 4"))
        with pytest.raises(UsageFailed, match="not be the same sweep"):
            resumed_book(swept, SweepOptions(str(small)))
    finally:
        small.write_text(before)
    assert conduct.next_job(resumed_book(swept, SweepOptions(str(small)))) is None


def test_a_point_that_the_client_could_not_make_is_tried_again(
    swept: Path, small: Path, tmp_path: Path
) -> None:
    """A resumed sweep drops the run that said nothing of the target, and asks for its point."""
    whole = document(swept)
    last = whole["runs"][-1]
    last["decision"] = "client"
    (tmp_path / "sweep.json").write_text(json.dumps(whole))
    book = resumed_book(tmp_path, SweepOptions(str(small)))
    assert len(book.runs) == len(whole["runs"]) - 1
    job = conduct.next_job(book)
    assert job is not None
    assert (job.value, job.repeat) == (last["value"], last["repeat"])


def test_a_directory_is_not_used_twice(swept: Path, app: typer.Typer, small: Path) -> None:
    """Exit 2 with both ways out, and the last line without a run."""
    last, _, said = called(app, small, *RATES, *QUICK, "--out", swept)
    assert (last["exit"], last["verdict"], last["run"]) == (2, "error", None)
    assert "--resume" in said


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ((), "nothing to vary"),
        (("pig.rate=1:4",), "did you mean 'ping.rate'"),
        (("ping.rte=1:4",), "ping.rate and ping.concurrency"),
        (("ping.rate",), "KEY=low:high"),
        (("ping.rate=8:4",), "8 is not below 4"),
        (("ping.rate=0:4",), "must be above 0"),
        (("ping.rate=0,4",), "above 0"),
        (("ping.rate=4x:8x",), "units /s /m /h"),
        (("ping.rate=fast,slow",), "is not a rate"),
        (("ping.rate=4,4/s",), "stands there twice"),
        (("ping.rate=1:4", "ping.rate=2,3"), "given twice"),
        (("engine.scheduler.prefil_chunk=16,32",), "did you mean 'prefill_chunk'"),
        (("engine.scheduler.prefill_chunk=16ms:32",), "the same unit"),
        (("engine.scheduler.prefill_chunk=16,",), "an empty value"),
        (("engine.scheduler.prefill_chunk={a,32",), "not a YAML value"),
        (("load.7.workload.input=1:4",), "load has items 0 to 1"),
        (("seed=1,2",), "--seed"),
        (("phases.window=30s,60s",), "--step-window"),
        (("phases={window: 1s},{window: 2s}",), "name another key of phases"),
        (("gates.0=a,b",), "change them with --set"),
        (("engine=1",), "such as engine.scheduler.prefill_chunk"),
        (("engine.scheduler.max_running=64,064",), "makes it octal in YAML: write 64"),
        (("ping.concurrency=01,1",), "makes it octal in YAML: write 1"),
        (("engine.scheduler.max_running=1,1",), "stands there twice"),
        (("engine.cost.a=1s,2s,1000ms",), "'1000ms' stands there twice, also as '1s'"),
        (("engine.name=2026-13-45,b",), "not a YAML value"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_any_load(
    app: typer.Typer, small: Path, tmp_path: Path, axes: tuple[str, ...], says: str
) -> None:
    """Exit 2, the axis named, nothing sent and no directory made."""
    given = [part for axis in axes for part in ("--axis", axis)]
    last, _, said = called(app, small, *given, *QUICK, "--out", tmp_path / "no")
    assert last == {"verdict": "error", "client": None, "interrupted": False, "exit": 2, "run": None}
    assert says in said
    assert not (tmp_path / "no").exists()


def test_all_errors_are_said_at_once(small: Path) -> None:
    """Of every axis, each with its own text."""
    with pytest.raises(UsageFailed) as refused:
        parse_axes(("pnig.rate=1:4", "ping.rate=8:4"), load_scenario(small))
    assert len(refused.value.lines) == 3


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--headroom", "20", "between 0% and 100%"),
        ("--headroom", "-5%", "share"),
        ("--step-window", "30", "missing unit"),
        ("--longest-window", "2s", "shorter than the first window"),
        ("--width", "0%", "between"),
    ],
)
def test_an_option_without_sense_is_refused(
    app: typer.Typer, small: Path, tmp_path: Path, option: str, text: str, says: str
) -> None:
    """Exit 2, with the option's name."""
    last, _, said = called(app, small, *RATES, *QUICK, option, text, "--out", tmp_path / "no")
    assert last["exit"] == 2
    assert option in said
    assert says in said


def test_nothing_to_hold_is_refused(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """No gates and no SLO: exit 2. With an SLO, the default objective stands in and is named."""
    bare = ("--set", "gates=[]", "--set", "classes.ping.slo={}")
    last, _, said = called(app, small, *RATES, *QUICK, *bare, "--out", tmp_path / "no")
    assert last["exit"] == 2
    assert "nothing to hold" in said
    design = make_design(SweepOptions(str(small), ("ping.rate=4:8",), overrides=("gates=[]",), virtual=True))
    assert design.spec.objectives == ("attainment >= 90%",)
    assert design.spec.default_objective
    assert 'gates=["attainment >= 90%"]' in design.overrides(0, 4.0, 30.0)


# --- axes


def overrides(axis: str, scenario: str, tmp_path: Path, value: str) -> tuple[str, ...]:
    path = tmp_path / "s.yaml"
    path.write_text(scenario)
    (parsed,) = parse_axes((axis,), load_scenario(path))
    return parsed.set(value)


def test_a_rate_is_laid_on_the_loads_of_its_class(small: Path, tmp_path: Path) -> None:
    """One load: its rate. Several: they keep their proportions, and their sum is the value."""
    assert overrides("ping.rate=1:4", SMALL, tmp_path, "3/s") == ("load.0.arrival.rate=3/s",)
    both = SMALL.replace("class: pong, arrival", "class: ping, arrival").replace(
        "  pong: {limits: {input: 128, output: 8, total: 128}}\n", ""
    )
    assert overrides("ping.rate=1:4", both, tmp_path, "10/s") == (
        "load.0.arrival.rate=8.0/s",
        "load.1.arrival.rate=2.0/s",
    )


def test_an_arrival_without_a_rate_is_named(tmp_path: Path) -> None:
    """A burst has a size, and no rate that could be varied."""
    burst = SMALL.replace("{type: constant, rate: 4/s}", "{type: burst, size: 4, every: 1s}")
    with pytest.raises(UsageFailed, match="comes by 'burst', which has no rate"):
        overrides("ping.rate=1:4", burst, tmp_path, "3/s")


def test_users_replace_an_open_arrival(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """An open load becomes a closed one; one that is closed keeps its think time."""
    assert overrides("ping.concurrency=1:4", SMALL, tmp_path, "3") == (
        "load.0.arrival={type: concurrency, users: 3, think: 0s}",
    )
    ours = SMALL.replace("ping.ttft_sched", "ping.ttft").replace("{ttft_sched:", "{ttft:")
    closed = ours.replace("{type: constant, rate: 4/s}", "{type: concurrency, users: 2, think: 1s}")
    assert overrides("ping.concurrency=1:4", closed, tmp_path, "3") == ("load.0.arrival.users=3",)
    with pytest.raises(UsageFailed, match=r"vary ping\.concurrency"):
        overrides("ping.rate=1:4", closed, tmp_path, "3")
    path, out = tmp_path / "closed.yaml", tmp_path / "users"
    path.write_text(ours)
    _, shown, _ = called(app, path, "--axis", "ping.concurrency=1,4", *QUICK, "--out", out)
    one, four = document(out)["runs"][0]["rows"]["ping"], document(out)["runs"][-1]["rows"]["ping"]
    assert four["completed_rate"] > one["completed_rate"] > 0
    assert four["ttft_p50"] > one["ttft_p50"] > 0
    assert "closed loop" in one["reasons"]["ttft_sched_p50"]
    assert "becomes a closed loop" in shown


def test_a_gate_that_means_nothing_in_a_closed_loop_is_refused(
    app: typer.Typer, small: Path, tmp_path: Path
) -> None:
    """An axis that closes the loop is checked with the gates, before any load."""
    axes = ("--axis", "ping.concurrency=1,4")
    last, _, said = called(app, small, *axes, *QUICK, "--out", tmp_path / "no")
    assert last["exit"] == 2
    assert "says nothing of a closed loop; use ttft" in said


def test_an_engine_key_needs_our_engine(small: Path) -> None:
    """With a URL as the target, its engine cannot be set."""
    options = SweepOptions(str(small), ("engine.scheduler.prefill_chunk=16,32",), target="http://127.0.0.1:1")
    with pytest.raises(UsageFailed, match="the target is a URL"):
        make_design(options)
    with pytest.raises(UsageFailed, match="exclude each other"):
        make_design(SweepOptions(str(small), RATES[1:], target="http://127.0.0.1:1", virtual=True))


def test_a_target_that_is_not_there_is_exit_3(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    """With its URL and the reason, after a directory that can be resumed."""
    url = "http://127.0.0.1:9"
    last, _, said = called(app, small, *RATES, "--target", url, "--out", tmp_path / "gone", "--quiet")
    assert (last["exit"], last["verdict"]) == (3, "error")
    assert url in said
    assert document(tmp_path / "gone")["runs"] == []


@pytest.mark.parametrize(
    ("text", "values", "span", "whole"),
    [
        ("64,256", ("64", "256"), None, False),
        ("1:64", (), (1, 64), True),
        ("0.5:8", (), (0.5, 8), False),
        ("250ms:2000ms", (), (250, 2000), False),
        ("lru,{type: ttl, after: 5m},[1, 2]", ("lru", "{type: ttl, after: 5m}", "[1, 2]"), None, False),
        ("cost", ("cost",), None, False),
        ("http://a:1,http://b:2", ("http://a:1", "http://b:2"), None, False),
    ],
)
def test_levels_are_read_as_written(
    text: str, values: tuple[str, ...], span: tuple[float, float] | None, whole: bool
) -> None:
    """Lists are split at commas outside of brackets; two numbers with a colon are a span."""
    found = read(text)
    assert (found.values, found.whole) == (values, whole)
    assert ((found.low, found.high) if span else None) == span


def test_rates_and_users_have_their_units() -> None:
    """A plain rate is per second; users are whole."""
    assert read_rates("30/m:2/s").low == 0.5
    assert read_rates("1,30/m").values == ("1/s", "0.5/s")
    assert (read_users("1:8").low, read_users("2,4").values) == (1, ("2", "4"))
    for wrong in ("0.5:4", "0:4", "1.5,2", "0,2", "2s:4s", "many"):
        with pytest.raises(LevelError):
            read_users(wrong)


# --- progress


def test_progress_says_how_long_it_still_takes(swept: Path, small: Path) -> None:
    """From the time that the runs took so far; nothing at the end."""
    whole = resumed_book(swept, SweepOptions(str(small)))
    begun = Book(whole.path, whole.design)
    said: list[str] = []
    now = 0

    def clock() -> int:
        return now

    progress = Progress(said.append, clock)
    progress.begin(begun)
    for run in whole.runs:
        begun.runs.append(run)
        now += 10_000_000_000
        progress.ran(begun, run)
    assert said[0].startswith("sweep of small over ping.rate")
    assert re.search(r"about \d+ more points, (\d+ s|\d+ min)$", said[len(begun.design.spec.objectives) + 1])
    assert "more point" not in said[-1]
    assert left(begun) == 0
    space = begun.design.spec.space
    assert space is not None
    assert ask(space, history(of_cell(begun.runs, 0))) is None


def test_a_class_that_is_not_there_is_named_with_those_that_are(small: Path) -> None:
    with pytest.raises(UsageFailed, match="no class 'chat': there is ping"):
        make_design(SweepOptions(str(small), ("chat.rate=1:4",)))
