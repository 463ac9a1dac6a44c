"""The live load generator against a reference server and small servers that mean ill: what a run keeps,
shows, refuses and hides."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd
import pytest

from headrace.console import Silent
from headrace.errors import BenchError, TargetFailed
from headrace.live import models_of
from headrace.live_load import LiveLoad
from headrace.run import Options, run_scenario
from headrace.site import LoadOrder
from loadgen.arrivals import Poisson
from loadgen.clock import monotonic
from loadgen.job import TargetJob
from loadgen.plan import Load, Phases, Plan
from loadgen.plan_io import read_plan, write_plan
from loadgen.reference.log import read_log
from loadgen.reference.script import Script
from loadgen.sockets import kernel_stamps_here
from loadgen.workload import Sessions
from results.recordfile import read_records
from scenarios.schema import UrlTarget

pytestmark = pytest.mark.e2e

PEM = Path(__file__).parents[1] / "loadgen" / "loopback.pem"
SCENARIO = """\
# What does the load generator do?
headrace: 1
seed: 3
target: {url: http://127.0.0.1:1, model: m}
classes:
  ping: {}
phases: {warmup: 0s, window: 2s, drain: 5s}
load:
  - {class: ping, arrival: {type: constant, rate: 10/s}, workload: {type: fixed, input: 30, output: 4}}
gates: [failed.count == 0]
"""
FILES = {
    "alone.parquet",
    "judging.json",
    "load.log",
    "manifest.json",
    "plan.parquet",
    "records.parquet",
    "report.html",
    "scenario.yaml",
    "scrapes.parquet",
    "summary.json",
}


def arguments(folder: Path, target: str, *overrides: str, text: str = SCENARIO) -> list[str]:
    """`bench run` of the scenario, with ``target`` as a block of YAML."""
    (folder / "s.yaml").write_text(text)
    sets = [f"target={target}", *overrides]
    return ["run", "s.yaml", "--out", "run", *(word for one in sets for word in ("--set", one))]


def one_record_each(run_dir: Path) -> pd.DataFrame:
    """The records, exactly one for each planned request."""
    records = pd.read_parquet(run_dir / "records.parquet")
    assert sorted(records["id"]) == sorted(pd.read_parquet(run_dir / "plan.parquet")["id"])
    assert records["outcome"].notna().all()
    return records


# --- a server in threads


@dataclass(frozen=True)
class Seen:
    """A request as it came in; names of headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Said:
    """An answer."""

    status: int = 200
    body: bytes = b""
    kind: str = "text/event-stream"
    headers: tuple[tuple[str, str], ...] = ()


Answer = Callable[[Seen], Said]


def events(*payloads: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in payloads)


def told(*texts: str, finish: str = "stop") -> Said:
    """A good answer of a token a text."""
    deltas = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return Said(body=events(*deltas, end) + b"data: [DONE]\n\n")


NO_MODELS = Said(body=b'{"data": []}', kind="application/json")


@dataclass
class Endpoint:
    """A server that keeps what it is sent."""

    url: str
    seen: list[Seen]

    @property
    def posts(self) -> list[Seen]:
        return [one for one in self.seen if one.method == "POST"]


@contextmanager
def endpoint(
    answer: Answer = lambda _: told("a", "b"), tls: bool = False, listed: Said = NO_MODELS
) -> Iterator[Endpoint]:
    """Serves in threads until left; ``listed`` is the answer to every GET."""
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            self._take()
            self._say(listed)

        def do_POST(self) -> None:
            self._say(answer(self._take()))

        def _take(self) -> Seen:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen.append(Seen(self.command, self.path, headers, body))
            return seen[-1]

        def _say(self, said: Said) -> None:
            self.send_response(said.status)
            for name, value in (("Content-Type", said.kind), *said.headers):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        request_queue_size = 512

        def handle_error(self, *_: Any) -> None:
            """Clients that hang up are no news."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(PEM)
            server.socket = context.wrap_socket(server.socket, True, do_handshake_on_connect=False)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Endpoint(f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}", seen)
        finally:
            server.shutdown()
            thread.join()


# --- targets that go away


def test_a_target_that_is_killed_in_the_middle(bench, until, reference):
    """kill -9 of the server: each planned request has its one outcome, the run directory is whole, the gate
    on failures decides, and the client is not blamed for what it could not reach."""
    server = reference(Script(ttft=0.05, itl=0.01, tokens=20))
    target = f"{{url: {server.url}, model: reference}}"
    bench.start(*arguments(bench.folder, target, "phases.window=5s", "load.0.arrival.rate=20/s"))
    kept = until(lambda: (n := bench.closed_records()) >= 10 and n)
    os.kill(server.pids[0], signal.SIGKILL)
    assert bench.wait() == 1, bench.stderr.read_text()
    assert bench.nothing_left()
    assert {file.name for file in bench.run_dir.iterdir()} == FILES
    records = one_record_each(bench.run_dir)
    outcomes = records["outcome"].value_counts()
    assert outcomes["completed"] >= kept
    assert set(outcomes.index) <= {"completed", "truncated", "reset", "connect_error"}
    assert outcomes["connect_error"] > 0
    assert records[records["outcome"] != "completed"]["error"].notna().all()
    summary, last = bench.summary(), bench.last_line()
    assert (last["exit"], last["verdict"], summary["interrupted"]) == (1, "fail", False)
    (gate,) = summary["gates"]
    assert (gate["verdict"], gate["value"]) == ("FAIL", 100 - outcomes["completed"])
    rows = summary["client"]["rows"]
    assert (rows["H8"]["value"], rows["H9"]["value"]) == (0, 0)
    if kernel_stamps_here():
        assert set(records[records["outcome"] == "completed"]["stamp"]) == {"kernel"}


def test_a_target_that_hangs_ends_by_the_clients_limits(bench, until, reference):
    """SIGSTOP of the server: what was in the air and what came later ends by a named timeout, and so does
    the run."""
    server = reference(Script(ttft=0.1, itl=0.1, tokens=20))
    target = f"{{url: {server.url}, model: reference}}"
    limits = "timeouts={connect: 1s, first_token: 1500ms, between_tokens: 1s, total: 8s}"
    bench.start(*arguments(bench.folder, target, limits, "phases.window=5s", "load.0.workload.output=20"))
    until(lambda: bench.closed_records() >= 3)
    os.kill(server.pids[0], signal.SIGSTOP)
    try:
        assert bench.wait() == 1, bench.stderr.read_text()
    finally:
        os.kill(server.pids[0], signal.SIGCONT)
    assert bench.nothing_left()
    records = one_record_each(bench.run_dir)
    timeouts = records[records["outcome"] == "client_timeout"]
    assert set(records["outcome"]) == {"completed", "client_timeout"}
    assert set(timeouts["timeout_limit"]) == {"first_token", "between_tokens"}
    assert bench.summary()["interrupted"] is False
    assert bench.last_line()["verdict"] == "fail"


def test_a_slow_first_token_is_waited_for_and_every_limit_is_printed(bench, reference):
    """C-19/slow-first-token: 6 s are longer than any library's patience; the limits that were set stand in
    the terminal, the summary and the report."""
    server = reference(Script(ttft=6.0, tokens=1))
    limits = "timeouts={connect: 5s, first_token: 60s, between_tokens: 30s, total: 600s}"
    target = f"{{url: {server.url}, model: reference}}"
    phases = "phases={window: 1s, drain: 60s}"
    code = bench.run(*arguments(bench.folder, target, limits, phases, "load.0.arrival.rate=2/s"))
    assert code in (0, 4), bench.stderr.read_text()
    records = one_record_each(bench.run_dir)
    assert list(records["outcome"]) == ["completed"] * 2
    assert ((records["first_token"] - records["start"]) >= 6e9).all()
    printed = "gave up after: connect 5 s, between tokens 30 s, first token 60 s, total 600 s"
    assert printed in " ".join(bench.stdout.read_text().split())
    assert printed in (bench.run_dir / "report.html").read_text()
    assert bench.summary()["timeouts"] == {
        "connect": 5.0,
        "first_token": 60.0,
        "between_tokens": 30.0,
        "total": 600.0,
    }


# --- the key

KEY = "hr-key-5up3r/s3cr+t=="


def echo(seen: Seen) -> Said:
    """Repeats the key that it was sent, in every place where a server can."""
    key = seen.headers["authorization"].removeprefix("Bearer ")
    shot = int(seen.headers["x-request-id"].rpartition("-")[2])
    padding = "x" * (280 + 2 * (shot // 9))  # so that a cut after 300 or 1,000 characters falls into the key
    answers = (
        Said(
            401,
            json.dumps({"error": {"message": f"bad key {key}", "code": key}}).encode(),
            "application/json",
        ),
        Said(500, f"{padding}{key}".encode(), "text/plain"),
        Said(body=events({"error": {"message": f"{padding * 3}{key}", "type": f"{key}"}})),
        Said(body=f"data: {padding[:190]}{key}\n\n".encode()),
        told("your key ", key[:7], key[7:], " is fine"),
        told("ok", finish=key),
        Said(body=events({"choices": [{"index": 0, "delta": {"content": key}}]})),
        Said(429, b"slow down", "text/plain", (("Retry-After", key), ("X-Key", key))),
        Said(302, b"", "text/plain", (("Location", f"https://elsewhere/?key={key}"),)),
    )
    return answers[shot % len(answers)]


def test_the_api_key_is_sent_and_left_nowhere(bench):
    """A server that repeats the key wherever it can, with every text kept: it got the key, and the key is in
    no file, no output, no command line, and no temporary file, also not in part."""
    bench.environment["HR_TEST_KEY"] = KEY
    found: list[str] = []
    with endpoint(echo) as server:
        target = f"{{url: {server.url}, model: m, key_env: HR_TEST_KEY}}"
        command = arguments(bench.folder, target, "load.0.arrival.rate=30/s")
        process = bench.start(*command, "--keep-text")
        while process.poll() is None:
            found += [place for place, data in _around(bench) if KEY.encode() in data]
        assert bench.wait() in (1, 4), bench.stderr.read_text()
    assert found == []
    assert {seen.headers["authorization"] for seen in server.seen if "metrics" not in seen.path} == {
        f"Bearer {KEY}"
    }
    records = one_record_each(bench.run_dir)
    assert len(set(records["outcome"])) >= 4, "the server was not heard"
    assert "[HR_TEST_KEY] is fine" in (bench.run_dir / "texts.jsonl").read_text()
    left = [bench.stdout, bench.stderr, *bench.run_dir.iterdir(), *bench.private.rglob("*")]
    for file in left:
        assert KEY[:12].encode() not in file.read_bytes(), file
        if file.suffix == ".parquet":  # compressed
            for row in pd.read_parquet(file).to_dict("records"):
                assert KEY[:12] not in str(row), file


def _around(bench: Any) -> Iterator[tuple[str, bytes]]:
    """What others can see of a run while it goes on: command lines and temporary files."""
    for pid in bench.processes():
        with suppress(OSError):
            yield f"/proc/{pid}/cmdline", Path(f"/proc/{pid}/cmdline").read_bytes()
    # os.walk goes on where a folder of the run has just been cleared away.
    for file in (Path(folder) / name for folder, _, names in os.walk(bench.private) for name in names):
        with suppress(OSError):
            yield str(file), file.read_bytes()


def test_the_key_goes_where_the_target_wants_it(bench):
    """`key_header` names another header; before the load and in it."""
    bench.environment["HR_TEST_KEY"] = KEY
    with endpoint() as server:
        target = f"{{url: {server.url}, model: m, key_env: HR_TEST_KEY, key_header: x-api-key}}"
        assert bench.run(*arguments(bench.folder, target, "phases.window=1s")) in (0, 4)
    asked = [seen for seen in server.seen if "metrics" not in seen.path]
    assert {(seen.headers.get("x-api-key"), seen.headers.get("authorization")) for seen in asked} == {
        (KEY, None)
    }


def test_a_key_that_the_target_does_not_take_is_said_before_the_load(monkeypatch):
    """With the name of its variable."""
    monkeypatch.setenv("HR_TEST_KEY", KEY)
    with endpoint(listed=Said(401, KEY.encode(), "text/plain")) as server:
        with pytest.raises(
            TargetFailed, match="answers 401: it does not take the key in HR_TEST_KEY"
        ) as said:
            asyncio.run(models_of(UrlTarget(server.url, "m", key_env="HR_TEST_KEY")))
        assert KEY not in str(said.value)
        with pytest.raises(TargetFailed, match="answers 401: set target"):
            asyncio.run(models_of(UrlTarget(server.url, "m")))


def refused(folder: Path, target: str, *overrides: str, text: str = SCENARIO) -> str:
    """What a run says that ends before anything was sent; no run directory is made."""
    (folder / "s.yaml").write_text(text)
    with pytest.raises(BenchError) as said:
        run_scenario(
            folder / "s.yaml",
            Options(out=folder / "run", overrides=(f"target={target}", *overrides)),
            Silent(),
        )
    assert said.value.exit_code == 2
    assert not (folder / "run").exists()
    return str(said.value)


@pytest.fixture
def untouched() -> Iterator[str]:
    """The URL of somebody who listens, and to whom nobody has spoken at the end of the test."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("header", ["Authorization: 'Bearer sk-1'", "x-api-key: sk-1", "Cookie: sk-1"])
def test_a_header_that_carries_a_secret_is_refused(tmp_path, untouched, header):
    """A scenario holds no key; the message names the way, and does not repeat the key."""
    said = refused(tmp_path, f"{{url: '{untouched}', model: m, headers: {{{header}}}}}")
    assert "name the environment variable that holds it in key_env" in said
    assert "sk-1" not in said.partition("carries a secret")[2]


def test_a_key_that_is_not_there_is_said_with_its_name(tmp_path, untouched, monkeypatch):
    """Unset and empty alike, before anybody is asked."""
    target = f"{{url: '{untouched}', model: m, key_env: HR_NO_KEY}}"
    monkeypatch.delenv("HR_NO_KEY", raising=False)
    assert "the environment variable HR_NO_KEY, which is not set" in refused(tmp_path, target)
    monkeypatch.setenv("HR_NO_KEY", "  ")
    assert "the environment variable HR_NO_KEY, which is empty" in refused(tmp_path, target)
    monkeypatch.setenv("HR_NO_KEY", "sk-1\nX-Other: 2")
    said = refused(tmp_path, target)
    assert "HR_NO_KEY holds characters that no header can hold" in said
    assert "sk-1" not in said


# --- refused before anything is sent

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
MOONCAKE = "load.0={class: ping, trace: {type: mooncake, file: t.jsonl}}"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"timestamp": 5, "input_length": 600,', "not JSON"),
        (json.dumps(GOOD | {"timestamp": -5}), "timestamp"),
        (json.dumps(GOOD | {"colour": 1}), "colour"),
        (json.dumps(GOOD | {"hash_ids": [1, 2, 3]}), "hash_ids"),
        (json.dumps(GOOD | {"input_length": 5000, "hash_ids": list(range(10))}), "5,004"),
    ],
    ids=["broken", "negative", "unknown", "beyond its lengths", "too long"],
)
def test_a_trace_with_a_broken_line_sends_nothing(tmp_path, untouched, row, says):
    """Broken, negative, unknown, beyond its lengths, beyond the model's: exit 2 with the file and line."""
    (tmp_path / "t.jsonl").write_text(json.dumps(GOOD) + "\n" + row + "\n")
    said = refused(tmp_path, f"{{url: '{untouched}', model: m, max_model_len: 4096}}", MOONCAKE)
    (line,) = (line for line in said.splitlines() if "t.jsonl:2:" in line)
    assert says in line


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("rate: 10/s", "rate: 0/s", 9, "rate"),
        ("rate: 10/s", "rate: -1/s", 9, "rate"),
        ("input: 30", "input: 5000", 9, "5,004 tokens"),
        ("input: 30", "input: 0", 9, "input"),
    ],
)
def test_a_load_that_cannot_be_sends_nothing(tmp_path, untouched, old, new, line, says):
    """A rate of 0, a prompt longer than the model's limit: exit 2 with the file and line."""
    text = SCENARIO.replace(old, new)
    said = refused(tmp_path, f"{{url: '{untouched}', model: m, max_model_len: 4096}}", text=text)
    (found,) = (one for one in said.splitlines() if f"s.yaml:{line}:" in one)
    assert says in found


def test_a_table_with_a_column_that_nobody_knows_sends_nothing(tmp_path, untouched):
    """Its header stands on line 1."""
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens,Colour\n")
    trace = "load.0={class: ping, trace: {type: azure, file: t.csv}}"
    said = refused(tmp_path, f"{{url: '{untouched}', model: m}}", trace)
    assert any("t.csv:1:" in line and "Colour" in line for line in said.splitlines())


def test_text_that_a_tokenizer_cannot_make_is_not_sent(tmp_path, untouched):
    """Prompts of exact lengths need pieces that are one token each; this tokenizer has none."""
    only = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(only))
    target = f"{{url: '{untouched}', model: m, tokenizer: {tmp_path / 'tokenizer.json'}}}"
    said = refused(tmp_path, target)
    assert "target.tokenizer" in said
    assert "prompts of an exact length cannot be made" in said


def test_a_refusal_is_exit_code_2(bench, untouched):
    """As a process: the last line and the exit code say so, and no run directory is made."""
    (bench.folder / "t.jsonl").write_text(json.dumps(GOOD) + "\n{\n")
    assert bench.run(*arguments(bench.folder, f"{{url: '{untouched}', model: m}}", MOONCAKE)) == 2
    assert "t.jsonl:2: not JSON" in bench.stderr.read_text()
    assert (bench.last_line()["exit"], bench.last_line()["verdict"]) == (2, "error")
    assert not bench.run_dir.exists()


# --- descriptors

CROWD = "load.0.arrival={type: concurrency, users: 500, requests: 1}"


def test_a_burst_beyond_the_descriptors_is_refused(bench):
    """500 requests at one instant where a process may open 200 files: nothing is sent, the numbers and the
    remedy are said."""
    bench.files = 200
    with endpoint() as server:
        code = bench.run(*arguments(bench.folder, f"{{url: '{server.url}', model: m}}", CROWD))
    assert code == 2, bench.stderr.read_text()
    said = " ".join(bench.stderr.read_text().split())
    assert "the plan needs 564 files open in one load process, 200 are possible" in said
    assert "use more load processes" in said
    assert server.posts == []
    assert not bench.run_dir.exists()


def test_a_plan_that_may_need_more_descriptors_is_warned_of(bench, reference):
    """500 Poisson requests in a second would need that many files if the target stalled: a warning, and they
    are all sent and answered."""
    bench.files = 200
    server = reference(Script(ttft=0.01, itl=0.001))
    rate = "load.0.arrival={type: poisson, rate: 400/s}"
    target = f"{{url: '{server.url}', model: reference}}"
    code = bench.run(*arguments(bench.folder, target, rate, "phases.window=1s", "load.0.workload.output=2"))
    assert code in (0, 4), bench.stderr.read_text()
    said = " ".join(bench.stderr.read_text().split())
    assert "if the target stalls, the plan needs up to" in said
    assert "files open in one load process, 200 are possible" in said
    records = one_record_each(bench.run_dir)
    assert len(records) > 300
    assert set(records["outcome"]) == {"completed"}


def test_descriptors_that_do_run_out_make_the_client_invalid(bench, reference):
    """A target that stalls until no file can be opened: what was lost to that is the client's fault and said
    to be, every request has its record, and the run does not pass."""
    bench.files = 200
    server = reference(Script(ttft=3.0, tokens=1))
    rate, gates = "load.0.arrival={type: poisson, rate: 300/s}", "gates=[]"
    target = f"{{url: '{server.url}', model: reference}}"
    code = bench.run(*arguments(bench.folder, target, rate, gates, "phases={window: 1s, drain: 30s}"))
    assert code == 4, bench.stderr.read_text()
    records = one_record_each(bench.run_dir)
    lost = records[records["outcome"] == "connect_error"]
    assert set(records["outcome"]) == {"completed", "connect_error"}
    assert lost["error"].str.startswith("EMFILE").all()
    client = bench.summary()["client"]
    assert client["verdict"] == "invalid"
    assert (client["rows"]["H8"]["value"], client["rows"]["H8"]["state"]) == (len(lost), "invalid")


# --- several load processes


async def _fired(target: TargetJob, order: LoadOrder) -> Any:
    load = await LiveLoad.begin(target, order, lambda _: None)
    try:
        load.start(monotonic() + 2_500_000_000)
        return await load.finished()
    finally:
        await load.close()


def test_load_processes_share_one_plan(tmp_path, reference):
    """Four of them send what one would: the same digest, every request once, every session by one process."""
    server = reference(Script(ttft=0.02, itl=0.002))
    loads, phases = [Load("chat", Poisson(20.0), Sessions(3, 30, 8, 2, 0.05))], Phases(window=2.0, drain=20.0)
    plan = Plan.make(loads, phases, 7, slices=4)
    write_plan(plan, tmp_path / "plan.parquet")
    assert plan.digest == Plan.make(loads, phases, 7).digest == read_plan(tmp_path / "plan.parquet").digest
    order = LoadOrder(plan, tmp_path, "word", "n", "r", (), processes=4)
    end = asyncio.run(_fired(TargetJob(server.url, "openai_chat", {"model": "reference"}), order))
    assert (end.lost, end.interrupted, len(end.signals["processes"])) == (None, False, 4)
    parts = [read_records(tmp_path / f"records-{slice}.arrow") for slice in range(4)]
    assert all(complete for _, complete in parts)
    records = pd.concat([part.assign(slice=slice) for slice, (part, _) in enumerate(parts)])
    assert sorted(records["id"]) == [shot.id for shot in plan.shots]
    assert (records.groupby("session")["slice"].nunique() == 1).all()
    assert records["slice"].nunique() == 4
    assert set(records["outcome"]) <= {"completed", "not_sent"}
    server.stop()
    asked = Counter(entry.request_id for entry in read_log(tmp_path / "reference-0.log"))
    assert set(asked.values()) == {1}
    assert asked.keys() == set(records[records["outcome"] == "completed"]["request_id"])


# --- retries


def faulty() -> Answer:
    """Turns the first attempt of every second request away."""
    attempts: Counter[bytes] = Counter()

    def answer(seen: Seen) -> Said:
        attempts[seen.body] += 1
        shot = int(seen.headers["x-request-id"].rpartition("-")[2].partition(".")[0])
        if shot % 2 and attempts[seen.body] == 1:
            return Said(503, b"not now", "text/plain")
        return told("a", "b")

    return answer


@pytest.mark.parametrize("most", [0, 2])
def test_attempts_are_recorded_apart(bench, most):
    """With retries the earlier attempts stand in attempts.parquet and the last ones among the records;
    without, a 503 is an outcome and there is no such file."""
    with endpoint(faulty()) as server:
        code = bench.run(
            *arguments(
                bench.folder,
                f"{{url: '{server.url}', model: m}}",
                f"client.retries={{max: {most}, backoff: 50ms}}",
                "gates=[ok.count == 20, rejected.count == 0]",
            )
        )
    records = one_record_each(bench.run_dir)
    odd = records["id"] % 2 == 1
    file = bench.run_dir / "attempts.parquet"
    if not most:
        assert code == 1
        assert not file.exists()
        assert set(records[odd]["outcome"]) == {"http_error"}
        assert len(server.posts) == 20
        return
    assert code in (0, 4), bench.stderr.read_text()
    assert set(records["outcome"]) == {"completed"}
    attempts = pd.read_parquet(file)
    assert sorted(attempts["id"]) == sorted(records[odd]["id"])
    assert set(attempts["outcome"]) == {"http_error"}
    assert set(attempts["http_status"]) == {503}
    assert (set(attempts["attempt"]), set(records[odd]["attempt"]), set(records[~odd]["attempt"])) == (
        {1},
        {2},
        {1},
    )
    sent = {seen.headers["x-request-id"] for seen in server.posts}
    assert sent == set(records["request_id"]) | set(attempts["request_id"])
    assert len(server.posts) == 30
    retried = records[odd].set_index("id")
    first = attempts.set_index("id")
    assert (retried["due"] == first["due"]).all(), "user latency counts from the first due time"
    assert (retried["start"] >= first["closed"] + 50_000_000).all()


# --- TLS


def test_a_target_behind_tls(bench):
    """A certificate of one's own is trusted by `target.ca`, before the load and in it; stamps stay."""
    with endpoint(tls=True) as server:
        target = f"{{url: '{server.url}', model: m, ca: {PEM}}}"
        code = bench.run(*arguments(bench.folder, target, "phases.window=1s"))
    assert code in (0, 4), bench.stderr.read_text()
    records = one_record_each(bench.run_dir)
    assert set(records["outcome"]) == {"completed"}
    if kernel_stamps_here():
        assert set(records["stamp"]) == {"kernel"}
    assert f"ca: {PEM}" in (bench.run_dir / "scenario.yaml").read_text()


def test_a_certificate_that_nobody_vouches_for_is_no_target(bench):
    """Exit 3 before a run directory is made, with the way out."""
    with endpoint(tls=True) as server:
        code = bench.run(*arguments(bench.folder, f"{{url: '{server.url}', model: m}}"))
    assert code == 3
    said = " ".join(bench.stderr.read_text().split())
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert "target.ca" in said
    assert server.seen == []


def test_the_environment_can_name_certificates_too(monkeypatch):
    """SSL_CERT_FILE in place of the system's, for a target that only `--target` names."""
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    with endpoint(tls=True) as server:
        assert asyncio.run(models_of(UrlTarget(server.url, "m"))) == []
        assert [seen.path for seen in server.seen] == ["/v1/models"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("{url: 'https://127.0.0.1:1', model: m, ca: nowhere.pem}", "No such file"),
        ("{url: 'https://127.0.0.1:1', model: m, ca: s.yaml}", "holds no certificates in PEM form"),
        (f"{{url: 'http://127.0.0.1:1', model: m, ca: {PEM}}}", "remove ca"),
    ],
)
def test_certificates_that_are_none_are_refused(tmp_path, monkeypatch, target, says):
    """Exit 2, in the scenario's words."""
    monkeypatch.chdir(tmp_path)
    said = refused(tmp_path, target)
    assert "target.ca" in said
    assert says in said
