"""`bench serve` as a target: driven by its URL alone, and read by a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import openai
import pandas as pd
import pytest

from dashboards.contract import filled, missing_names, names, panels

pytestmark = pytest.mark.e2e

DASHBOARD = Path(__file__).parents[2] / "dashboards" / "generated" / "engine.json"
LONG = "The quick brown fox jumps over the lazy dog. " * 20
SCENARIO = """\
# Does a foreign endpoint need anything but its URL?
headrace: 1
seed: 3
target: {url: http://127.0.0.1:1, model: nobody}
classes:
  ping: {limits: {input: 256, output: 16, total: 256}}
phases: {warmup: 0s, window: 2s, drain: 5s}
load:
  - {class: ping, arrival: {type: constant, rate: 5/s}, workload: {type: fixed, input: 30, output: 6}}
faults:
  - {id: hangup, type: cancel, class: ping, share: 30%, when: {decode: 2}}
gates: [failed.count == 0]
"""


@pytest.fixture
def served(benches, until):
    """(bench, URL) of `bench serve` on the simulated model, without an admin door; ended by Ctrl-C."""
    bench = benches()
    bench.start("serve", "--model", "simulated", "--workers", "2", "--port", "0")
    until(lambda: bench.said("ready on"))
    (url,) = re.findall(r"ready on (http://127\.0\.0\.1:\d+)", bench.stderr.read_text())
    yield bench, url
    assert bench.process is not None
    bench.process.send_signal(signal.SIGINT)
    assert bench.wait() == 0, bench.stderr.read_text()
    assert bench.nothing_left()


def test_a_url_is_all_that_a_run_needs(served, bench):
    """`--target URL` against a served engine: its model is found, load and client faults work, and what
    needs an admin door is left open, not failed."""
    _, url = served
    (bench.folder / "url.yaml").write_text(SCENARIO)
    code = bench.run("run", "url.yaml", "--target", url, "--out", "run")
    assert code in (0, 4), bench.stderr.read_text()
    assert bench.nothing_left()
    summary = bench.summary()
    assert summary["invariants"]["failed"] == []
    outcomes = pd.read_parquet(bench.run_dir / "records.parquet")["outcome"].value_counts()
    assert set(outcomes.index) == {"completed", "cancelled_by_plan"}
    assert outcomes.sum() == 10
    assert bench.faults()["hangup"]["error"] is None
    assert not (bench.run_dir / "truth.parquet").exists()
    assert "model: simulated" in (bench.run_dir / "scenario.yaml").read_text()


def traffic(url: str) -> None:
    """What a user of the official client sends: chat and completions, streamed and whole, usage, a stream
    that is left, two refusals."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for _ in range(3):
            client.completions.create(model="simulated", prompt=LONG, max_tokens=8)
            list(
                client.chat.completions.create(
                    model="simulated",
                    messages=[{"role": "user", "content": LONG}],
                    max_tokens=8,
                    stream=True,
                )
            )
        whole = client.chat.completions.create(
            model="simulated",
            messages=[{"role": "user", "content": LONG}],
            max_tokens=8,
            extra_body={"ignore_eos": True},
        )
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (8, "length")
        assert whole.usage.prompt_tokens_details.cached_tokens > 0
        *_, last = client.completions.create(
            model="simulated",
            prompt=LONG,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        assert last.usage.total_tokens == last.usage.prompt_tokens + 8
        left = client.completions.create(
            model="simulated", prompt=LONG, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(left))
        left.close()
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="simulated", prompt="x", max_tokens=4, echo=True)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x", max_tokens=4)


def test_every_name_of_the_dashboard_is_on_the_real_page(served, until):
    """After a handful of requests, /metrics has each series that the dashboard asks for, and counted."""
    _, url = served
    traffic(url)

    def page() -> str:
        return httpx.get(f"{url}/metrics", trust_env=False).text

    for counter in ("prefix_hit_tokens", "cancelled", "finished", "generated_tokens"):
        counted = re.compile(rf"headrace_engine_{counter}_total\{{[^}}]*\}} [1-9]")
        until(lambda counted=counted: counted.search(page()))
    assert missing_names(DASHBOARD.read_text(), page()) == set()


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def prometheus(folder: Path, target: str):
    """A Prometheus that scrapes ``target`` each second; yields a client for its API."""
    scrape = {"job_name": "headrace", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--storage.tsdb.path={folder / 'data'}"], stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False, timeout=20) as client:
            yield client
    finally:
        process.terminate()
        process.wait(20)


def ask(client: httpx.Client, expr: str) -> list[dict[str, object]]:
    """The series of the last minute."""
    now = time.time()
    answer = client.get("/query_range", params={"query": expr, "start": now - 60, "end": now, "step": 1})
    assert answer.status_code == 200, f"{expr}: {answer.text}"
    found: list[dict[str, object]] = answer.json()["data"]["result"]
    return found


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on the PATH")
def test_a_real_prometheus_answers_every_query_of_the_dashboard(served, tmp_path, until):
    """Each panel's queries, variables filled in, parse, run and find series (OBSERVABILITY O15)."""
    _, url = served

    def scrapes(client: httpx.Client) -> float:
        try:
            series = ask(client, "count_over_time(up{job='headrace'}[1m]) * up")
        except (httpx.TransportError, AssertionError):
            return 0
        return max((float(value) for one in series for _, value in one["values"]), default=0)  # type: ignore[attr-defined]

    with prometheus(tmp_path, url.removeprefix("http://")) as client:
        until(lambda: scrapes(client) >= 2)
        traffic(url)
        until(lambda: scrapes(client) >= 5)
        stored = set(client.get("/label/__name__/values").json()["data"])
        empty = []
        for panel in panels(DASHBOARD.read_text()):
            for target in panel["targets"]:
                expr = filled(target["expr"])
                assert names(expr) <= stored, f"{panel['title']}: {names(expr) - stored} is not exported"
                if not ask(client, expr):
                    empty.append((panel["title"], expr))
        assert empty == []
