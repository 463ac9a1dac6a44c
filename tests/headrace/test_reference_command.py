"""`bench reference` and `bench doctor` as commands: their files, their words, their end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.errors import UsageFailed
from headrace.machine import usable_cores
from headrace.reference import ServeOptions, read_script, summary_lines
from loadgen.reference.log import read_log
from loadgen.reference.script import Failure, Framing, Jitter, Script, Stall

COMMAND = """
import sys, typer
from headrace import console
from headrace.commands_reference import register
from headrace.errors import BenchError
app = typer.Typer()
register(app)
try:
    app()
except BenchError as error:
    console.complain(error)
    sys.exit(error.exit_code)
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, *arguments]


def test_a_script_is_read_from_a_file_with_edits_on_top(tmp_path: Path) -> None:
    """Every kind of block, with units; a flag wins over the file."""
    file = tmp_path / "script.yaml"
    file.write_text(
        """
ttft: 80ms
tokens: 12
jitter: {law: exponential, scale: 2ms}
stalls:
  - {at: 5, for: 1s}
failures:
  - {kind: status, share: 10%, status: 429, retry_after: 2s}
  - {kind: in_band, share: 0.05, after: 3}
framing: {line_end: crlf, cuts: [3, -1], head: with the first}
"""
    )
    assert read_script(file, ["itl=5ms", "ttft=0.1s"]) == Script(
        ttft=0.1,
        itl=0.005,
        tokens=12,
        jitter=Jitter("exponential", 0.002),
        stalls=(Stall(5, 1.0),),
        failures=(Failure("status", 0.1, status=429, retry_after=2.0), Failure("in_band", 0.05, 3)),
        framing=Framing(line_end="crlf", cuts=(3, -1), head="with the first"),
    )
    assert read_script(None, []) == Script()


@pytest.mark.parametrize(
    ("text", "edits", "words"),
    [
        ("ttft: 5", [], [":1: ttft: missing unit"]),
        ("itle: 5ms", [], [":1: itle: unknown key 'itle' (did you mean 'itl'?)"]),
        ("framing: {cutz: [1]}", [], ["did you mean 'cuts'?"]),
        ("stalls:\n - {att: 1}", [], [":2:", "did you mean 'at'?", "missing key 'for'"]),
        ("failures: [{kind: resett, share: 10%}]", [], ["did you mean 'reset'?"]),
        ("framing: {events_per_write: 0}", [], ["events_per_write is at least 1, not 0"]),
        ("failures: [{kind: reset, share: 80%}, {kind: status, share: 80%}]", [], ["160%"]),
        ("a: [", [], ["not YAML"]),
        ("ttft: 5ms", ["itl"], ["KEY=VALUE"]),
        ("ttft: 5ms\nitl: 5", ["tokens=none"], [":2: itl: missing unit", "tokens"]),
    ],
)
def test_a_wrong_script_is_refused_with_every_error(
    text: str, edits: list[str], words: list[str], tmp_path: Path
) -> None:
    """Each with file and line, before anything is started."""
    file = tmp_path / "script.yaml"
    file.write_text(text)
    with pytest.raises(UsageFailed) as refused:
        read_script(file, edits)
    for word in words:
        assert word in str(refused.value)


def test_a_missing_file_and_foreign_cores_are_usage_errors(tmp_path: Path) -> None:
    """What cannot be read or pinned is said."""
    with pytest.raises(UsageFailed, match="cannot be read"):
        read_script(tmp_path / "none.yaml", [])
    stranger = max(usable_cores()) + 1
    with pytest.raises(UsageFailed, match=rf"\[{stranger}\]"):
        ServeOptions(cpus=(stranger,))
    with pytest.raises(UsageFailed, match="--processes"):
        ServeOptions(processes=0)


def test_the_summary_names_what_the_client_did() -> None:
    """Counts, lateness, cost; waiting for the client is a line of its own."""
    one = {
        "requests": 3,
        "tokens": 150,
        "connections": 2,
        "ends": {"whole": 2, "hung_up": 1, "reset": 0},
        "late_p50_us": 12.0,
        "late_p99_us": None,
        "late_max_us": 40.0,
        "cpu_us_per_write": 5.25,
        "cpu_share": 0.4,
        "blocked": 0,
        "refused": 0,
    }
    text = "\n".join(summary_lines([one]))
    assert "3 requests (2 whole, 1 hung up), 150 tokens, 2 connections" in text
    assert "late p50 12.0 µs, p99 –, most 40.0 µs; 5.2 µs of CPU per write, all in; 40% of a core" in text
    assert "1 writes waited" in "\n".join(summary_lines([{**one, "blocked": 1}]))


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_cleanly_with_its_summary_and_log(number: signal.Signals, tmp_path: Path) -> None:
    """A ready line, answers, a signal, a summary, exit 0, a log, no process left."""
    log = tmp_path / "stamps.log"
    flags = ("--port", "0", "--ttft", "5ms", "--itl", "1ms", "--processes", "2", "--log", str(log), "--json")
    with subprocess.Popen(command("reference", *flags), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        http = HTTPConnection(urlsplit(ready["url"]).netloc, timeout=10)
        body = json.dumps({"max_tokens": 4, "stream": True})
        http.request("POST", "/v1/chat/completions", body, {"X-Request-Id": "one"})
        assert http.getresponse().read().count(b'"content":" ') == 4
        http.close()
        process.send_signal(number)
        summary = json.loads(process.stdout.readline())
    assert process.returncode == 0
    assert (ready["event"], len(ready["pids"]), ready["pid"]) == ("ready", 2, ready["pids"][0])
    assert ready["us_per_write"] > 0
    assert sum(one["tokens"] for one in summary["processes"]) == 4
    assert [(entry.request_id, len(entry.stamps)) for entry in read_log(log)] == [("one", 4)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ready["pids"])


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reference", "--ttft", "5"), "missing unit"),
        (("reference", "--no-log", "--log", "x"), "exclude each other"),
        (("reference", "--log", "/nowhere/x.log"), "no folder"),
        (("reference", "--cpus", "a"), "numbers of cores"),
        (("doctor", "--bound", "0"), "--bound must be above 0"),
    ],
)
def test_wrong_options_exit_2(arguments: tuple[str, ...], words: str) -> None:
    """With the reason on stderr."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words in done.stderr


def test_the_documented_script_is_the_default_one(tmp_path: Path) -> None:
    """docs/reference.md names every key of a script, with the defaults that hold; its example is valid."""
    text = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    whole, example = re.findall(r"```yaml\n(.*?)```", text, re.S)
    for name, block in (("whole.yaml", whole), ("example.yaml", example)):
        (tmp_path / name).write_text(block)
    assert read_script(tmp_path / "whole.yaml", []) == Script()
    assert set(re.findall(r"^(\w+):", whole, re.M)) == {field.name for field in fields(Script)}
    assert len(read_script(tmp_path / "example.yaml", []).failures) == 2
    framing = "".join(re.findall(r"^\| (`.*?) \|", text.split("**Framing**")[1].split("###")[0], re.M))
    assert set(re.findall(r"`(\w+)`", framing)) == {field.name for field in fields(Framing)}
