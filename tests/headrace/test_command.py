"""The `bench` command without a load: what it prints, and how it refuses."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from headrace import cli

Command = Callable[..., tuple[int, str, str]]

GOOD = """\
# Is it good?
headrace: 1
seed: 1
target: {engine: {model: simulated, memory: {kv_blocks: 64}}}
classes:
  ping: {limits: {input: 64, output: 8, total: 64}}
phases: {window: 2s, drain: 1s}
load:
  - {class: ping, arrival: {type: constant, rate: 2/s}, workload: {type: fixed, input: 8, output: 4}}
gates: [attainment >= 50%]
"""


def closing(out: str) -> int:
    """The exit code in the last line (JOINTS 7), which must be all that is on stdout."""
    (line,) = out.splitlines()
    last = json.loads(line)
    assert last == {
        "verdict": "error",
        "client": None,
        "interrupted": False,
        "exit": last["exit"],
        "run": None,
    }
    return int(last["exit"])


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs the entry point of `bench` in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (("--help",), "run"),
        (("run", "--help"), "--virtual"),
        (("list",), "kill_worker"),
        (("list", "--json"), '"name"'),
        (("schema",), '"$defs"'),
        (("scenarios",), "accidental-reset"),
        (("plan", "quickstart"), "prefill"),
        (("plan", "quickstart", "--virtual", "--json"), '"digest"'),
        (("validate", "smoke"), "ok"),
        (("model", "list"), "smollm2-135m"),
    ],
)
def test_what_one_looks_at_before_a_run(arguments: tuple[str, ...], shows: str) -> None:
    """Prints something useful and exits 0."""
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0
    assert shows in result.stdout


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of all that can be typed, groups too."""
    yield path, group
    for name, inner in getattr(group, "commands", {}).items():
        yield from commands(inner, *path, name)


COMMANDS = dict(commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example(path: tuple[str, ...]) -> None:
    """Its --help shows how it is typed."""
    assert re.search(rf"\Wbench {' '.join(path)}", str(COMMANDS[path].help))


def test_the_schema_is_json(command: Command) -> None:
    """Nothing but JSON on stdout, for editors."""
    code, out, _ = command("schema")
    assert code == 0
    assert json.loads(out)["type"] == "object"


def test_all_errors_of_a_scenario_at_once(command: Command) -> None:
    """Exit 2 before anything is sent; each error on a line of its own that begins with file:line."""
    broken = (
        GOOD.replace("phases: {window: 2s", "phases: {windw: 2")
        .replace("rate: 2/s", "rate: 2")
        .replace("class: ping", "class: pong")
        .replace("attainment >= 50%", "ping.tfft.p50 < 1s, ping.ttft.p50 < 1")
    )
    Path("broken.yaml").write_text(broken)
    for arguments in (("validate",), ("run",), ("run", "--virtual")):
        code, out, err = command(*arguments[:1], "broken.yaml", *arguments[1:])
        assert code == 2
        assert closing(out) == 2 if arguments[0] == "run" else out == ""
        assert not Path("runs").exists()
        located = [line.strip() for line in err.splitlines() if line.strip().startswith("broken.yaml:")]
        for line, words in (
            (7, "'windw' (did you mean 'window'"),
            (9, "'pong' (did you mean 'ping'"),
            (9, "rate"),
            (10, "tfft"),
            (10, "ping.ttft.p50 < 1"),
        ):
            assert any(text.startswith(f"broken.yaml:{line}:") and words in text for text in located), (
                words,
                err,
            )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--set", "gates=[speed < 3ms]"), "speed"),
        (("--set", "gates=[ttft.p50 < 3]"), "unit"),
        (("--set", "load.0.arrival.rte=3/s"), "rate"),
        (("--virtual", "--target", "http://127.0.0.1:1"), "exclude each other"),
        (("--target", "127.0.0.1:1"), "http://"),
        (("--target", "http://127.0.0.1:1", "--set", "seed=one"), "seed"),
        (("--seed", "-1"), "a seed is 0 or more"),
        (("--virtual", "--set", "target={url: 'http://127.0.0.1:1', model: m}"), "no virtual time"),
        (("--virtual", "--set", "load.0.arrival={type: poisson, rate: 1e-9/s}"), "nothing would be sent"),
        (("--no-such-option",), "No such option"),
        (("--seed", "many"), "valid integer"),
    ],
)
def test_usage_errors(change: tuple[str, ...], says: str, command: Command) -> None:
    """Exit 2, only the last line on stdout, nothing made."""
    Path("good.yaml").write_text(GOOD)
    code, out, err = command("run", "good.yaml", *change)
    assert (code, closing(out)) == (2, 2), err
    assert says in err
    assert not Path("runs").exists()


@pytest.mark.parametrize("arguments", [("run",), ("gate",), ("report", "--nope"), ("sweep",)])
def test_wrong_options_close_with_the_last_line_too(arguments: tuple[str, ...], command: Command) -> None:
    """A program that reads the last line finds one, whatever it passed."""
    code, out, err = command(*arguments)
    assert (code, closing(out)) == (2, 2)
    assert "Error" in err


def test_a_fault_of_our_own_is_no_failed_gate(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 3 with the traceback on stderr: exit 1 would say that the target failed its gates."""
    Path("good.yaml").write_text(GOOD)
    monkeypatch.setattr("headrace.prepare.make_plan", lambda scenario: 1 / 0)
    code, out, err = command("run", "good.yaml", "--virtual")
    assert (code, closing(out)) == (3, 3)
    assert "Traceback" in err
    assert "a fault of headrace itself" in err


@pytest.mark.parametrize("name", ["validate", "plan"])
def test_a_fault_of_our_own_is_none_of_the_file(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the command: exit 3, and the traceback."""
    monkeypatch.setattr("headrace.prepare.load_scenario", lambda *_, **__: 1 / 0)
    code, out, err = command(name, "any.yaml")
    assert (code, out) == (3, "")
    assert "Traceback" in err
    assert "a fault of headrace itself, please report it: ZeroDivisionError" in err


def test_the_plan_says_how_a_trace_is_replayed_and_what_is_missing(command: Command) -> None:
    """Spread, thinning and scaling stand under the table; so does a class of which nothing is due."""
    rows = [
        {"timestamp": 3000 * (i // 4), "input_length": 20, "output_length": 4, "hash_ids": [i]}
        for i in range(20)
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = "{type: mooncake, file: t.jsonl, thin: 50%, compress: 2.0, max_input: 40}"
    Path("trace.yaml").write_text(
        GOOD.replace(
            "  - {class: ping, arrival", f"  - {{class: ping, trace: {trace}}}\n  - {{class: ping, arrival"
        )
        .replace("constant, rate: 2/s", "burst, size: 2, at: 3s")
        .replace("window: 2s", "window: 6s")
    )
    code, out, _ = command("plan", "trace.yaml")
    assert code == 0
    for words in ("mooncake", "rounded to 3 s", "Thinned", "divided by 2", "KV tokens held"):
        assert words in out
    late = ("--set", "load.0.trace.start_at=9s", "--set", "phases.warmup=6s")
    _, out, _ = command("plan", "trace.yaml", *late)
    assert "class 'ping': no request is due in the window" in out


def test_a_folder_that_holds_a_run_is_not_written_over(command: Command) -> None:
    """--out of a run that is there: exit 2, and the run is as it was."""
    Path("good.yaml").write_text(GOOD)
    code, out, _ = command("run", "good.yaml", "--virtual", "--out", "run", "--quiet")
    assert code == 0
    assert json.loads(out)["run"] == "run"
    before = {file.name: file.read_bytes() for file in Path("run").iterdir()}
    code, out, err = command("run", "good.yaml", "--virtual", "--out", "run")
    assert (code, closing(out)) == (2, 2)
    assert "already holds a run" in err
    assert {file.name: file.read_bytes() for file in Path("run").iterdir()} == before


@pytest.mark.parametrize("out", ["good.yaml", "good.yaml/run"])
def test_a_folder_that_cannot_be_made_is_said_with_a_remedy(command: Command, out: str) -> None:
    """Before any load, without the system's numbers."""
    Path("good.yaml").write_text(GOOD)
    code, said, err = command("run", "good.yaml", "--virtual", "--out", out)
    assert (code, closing(said)) == (2, 2)
    assert f"{out}: cannot be made a run directory (" in err
    assert "choose another --out" in err
    assert "Errno" not in err


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:80/v1?api-key=s3cret"])
def test_a_target_that_cannot_be_one_is_a_usage_error(command: Command, url: str) -> None:
    """No traceback, no fault of headrace itself, no run."""
    Path("good.yaml").write_text(GOOD)
    code, said, err = command("run", "good.yaml", "--target", url, "--out", "run")
    assert (code, closing(said)) == (2, 2)
    assert "target: url " in err
    assert not Path("run").exists()


def test_gates_of_a_run_that_is_there(command: Command) -> None:
    """`bench gate` judges other gates: 0, 1, or 2 for one that cannot be, with a hint."""
    Path("good.yaml").write_text(GOOD)
    assert command("run", "good.yaml", "--virtual", "--out", "run", "--quiet")[0] == 0
    assert command("gate", "run")[0] == 0
    assert command("gate", "run", "ping.ttft.p50 < 60s")[0] == 0
    code, out, _ = command("gate", "run", "ping.completed.count > 100", "invariants.failed == 0")
    assert code == json.loads(out.splitlines()[-1])["exit"] == 1
    assert "FAIL" in out
    code, out, err = command("gate", "run", "ping.tfft.p50 < 1s", "ping.ttft.p50 < 1")
    assert (code, closing(out)) == (2, 2)
    assert "did you mean 'ttft'" in err
    assert "unit" in err
    assert command("report", "elsewhere")[0] == command("explain", "run", "--request", "77")[0] == 2


def test_a_target_that_does_not_answer(command: Command) -> None:
    """Exit 3 with the URL and the reason."""
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        Path("url.yaml").write_text(
            GOOD.replace("engine: {model: simulated, memory: {kv_blocks: 64}}", f"url: {url}, model: m")
        )
        code, out, err = command("run", "url.yaml")
    assert (code, closing(out)) == (3, 3)
    assert url in err
    assert "attempts failed" in err or "refused" in err


def test_json_output_is_json_and_a_last_line(command: Command) -> None:
    """`run --json`: the summary, then the last line; progress is not among them."""
    Path("good.yaml").write_text(GOOD)
    code, out, _ = command("run", "good.yaml", "--virtual", "--out", "run", "--json")
    text, last = out.rstrip("\n").rsplit("\n", 1)
    summary: dict[str, Any] = json.loads(text)
    assert code == summary["exit"] == json.loads(last)["exit"] == 0
    assert summary == json.loads(Path("run/summary.json").read_text())
