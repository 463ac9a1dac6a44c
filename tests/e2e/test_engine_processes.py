"""The engine with real processes and sockets, on the simulated model."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.config import ClassConfig, CostModel, EngineConfig, MemoryConfig
from engine.config_io import write_config
from engine.fleet.supervisor import ProcessPool
from engine.messages import FromWorker, Heartbeat, Hello, Submit, TokensOut
from engine.request import Request, Sampling, Tokens

pytestmark = pytest.mark.e2e

CONFIG = EngineConfig(
    model="simulated",
    workers=2,
    memory=MemoryConfig(kv_blocks=512),
    cost=CostModel(a=0.005, b=2e-5, c=1e-4),
    classes={"default": ClassConfig(max_input=2000, default_output=32)},
)
LONG = "The quick brown fox jumps over the lazy dog. " * 20


@dataclass
class Engine:
    """A running ``python -m engine`` and clients for it."""

    process: subprocess.Popen[str]
    url: str
    admin: httpx.Client
    public: httpx.Client

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)

    def workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = self.admin.get("/admin/state").json()["workers"]
        return workers

    def broken_invariants(self) -> list[Any]:
        audit = self.admin.get("/admin/audit").json()
        return [row for row in audit["invariants"] if not row["ok"]]

    def idle(self) -> bool:
        return not self.admin.get("/admin/state").json()["requests"]


def start(folder: Path, config: EngineConfig) -> Engine:
    write_config(folder / "engine.json", config)
    command = [sys.executable, "-m", "engine", "--config", str(folder / "engine.json")]
    command += ["--admin-port", "0", "--token-file", str(folder / "token")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.stdout.close()
        process.wait(20)
        raise AssertionError((folder / "log").read_text())
    where = json.loads(line)
    assert where["pid"] == process.pid
    token = (folder / "token").read_text().strip()
    return Engine(
        process,
        where["url"],
        httpx.Client(
            base_url=where["admin_url"],
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=20,
        ),
        httpx.Client(base_url=where["url"], trust_env=False, timeout=20),
    )


def stop(engine: Engine) -> int:
    engine.admin.close()
    engine.public.close()
    if engine.process.poll() is None:
        engine.process.send_signal(signal.SIGTERM)
    assert engine.process.stdout is not None
    rest = engine.process.stdout.read()
    code = engine.process.wait(20)
    engine.process.stdout.close()
    assert rest == "", "exactly one line goes to stdout"
    return code


def until(condition: Callable[[], Any], seconds: float = 10.0) -> float:
    """Poll real processes; returns the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never came true"
        time.sleep(0.01)
    return time.monotonic() - began


def gone(pids: list[int]) -> bool:
    """No process of these is left, zombies of others' children aside."""
    return not any(Path(f"/proc/{pid}/cmdline").exists() and _commands(pid) for pid in pids)


def _commands(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = start(tmp_path_factory.mktemp("engine"), CONFIG)
    pids = [worker["pid"] for worker in engine.workers()]
    yield engine
    assert stop(engine) == 0
    assert gone(pids)


def test_chat_and_completions_with_the_official_client(engine):
    """Whole and streamed answers agree, and the second time the prompt comes from cache."""
    messages: Any = [{"role": "system", "content": LONG}, {"role": "user", "content": "Hello?"}]
    with engine.client() as client:
        assert [model.id for model in client.models.list()] == ["simulated"]
        whole = client.chat.completions.create(
            model="simulated", messages=messages, max_tokens=12, extra_body={"ignore_eos": True}
        )
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 0
        chunks = list(
            client.chat.completions.create(
                model="simulated",
                messages=messages,
                max_tokens=12,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
        )
        *deltas, usage = chunks
        text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
        assert text == whole.choices[0].message.content
        ids = [token for chunk in deltas for token in getattr(chunk.choices[0], "token_ids", [])]
        assert len(ids) == 12
        assert usage.usage is not None
        assert usage.usage.prompt_tokens_details is not None
        cached = usage.usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        assert cached > usage.usage.prompt_tokens - 2 * CONFIG.memory.block_size
        assert usage.choices == []
        assert usage.headrace["worker"] in (0, 1)  # type: ignore[attr-defined]
        completion = client.completions.create(model="simulated", prompt="Once upon", max_tokens=5)
        streamed = client.completions.create(model="simulated", prompt="Once upon", max_tokens=5, stream=True)
        assert "".join(part.choices[0].text for part in streamed) == completion.choices[0].text


def test_several_choices(engine):
    """Each choice has its own text, whole and streamed alike, and ends once; usage counts them all."""
    asked: Any = {
        "model": "simulated",
        "prompt": LONG,
        "max_tokens": 8,
        "n": 3,
        "temperature": 1.0,
        "seed": 4,
    }
    with engine.client() as client:
        whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
        parts = list(client.completions.create(**asked, extra_body={"ignore_eos": True}, stream=True))
    texts = {choice.index: choice.text for choice in whole.choices}
    assert len(set(texts.values())) == len(texts) == 3
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    chunks = [choice for part in parts for choice in part.choices]
    ends = [(choice.index, choice.finish_reason) for choice in chunks if choice.finish_reason]
    assert sorted(ends) == [(0, "length"), (1, "length"), (2, "length")]
    for index, text in texts.items():
        assert "".join(choice.text for choice in chunks if choice.index == index) == text
    assert engine.broken_invariants() == []


def test_errors_reach_the_client_as_its_own_exceptions(engine):
    """An unknown model, a field that is not supported, and a prompt beyond the limit."""
    messages: Any = [{"role": "user", "content": "x"}]
    beams = {"use_beam_search": True}
    with engine.client() as client:
        with pytest.raises(openai.NotFoundError, match="serves 'simulated'"):
            client.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="simulated", messages=messages, extra_body=beams)
        assert caught.value.param == "use_beam_search"
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="simulated", prompt="x " * 3000, max_tokens=1)


def test_a_cancelled_stream_leaves_nothing_behind(engine):
    """Leaving a stream ends its request; memory and ledgers balance afterwards."""
    with engine.client() as client:
        stream = client.completions.create(
            model="simulated",
            prompt=LONG,
            max_tokens=500,
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers={"X-Request-Id": "leaver"},
        )
        next(iter(stream))
        stream.close()
    until(engine.idle, 2)
    assert engine.broken_invariants() == []
    rows = [json.loads(line) for line in engine.admin.get("/admin/truth").text.splitlines()]
    (row,) = [row for row in rows if row["id"] == "leaver"]
    assert row["finish_reason"] == "cancelled"
    assert row["cancel_phase"] == "decode"


def test_a_request_is_held_at_a_phase_and_released(engine):
    """A breakpoint stops one request between two tokens, phase-exact, while others run on (E48)."""
    hold = engine.admin.post("/admin/hold", json={"phase": "decode:3", "request": "paused"}).json()["hold_id"]
    body = {"model": "simulated", "prompt": "hold me", "max_tokens": 6, "ignore_eos": True}
    headers = {"X-Request-Id": "paused"}
    with engine.public.stream(
        "POST", "/v1/completions", json={**body, "stream": True}, headers=headers
    ) as response:
        held = engine.admin.get(f"/admin/hold/{hold}", params={"timeout": "5"}).json()["held"]
        assert (held["request"], held["phase"]) == ("paused", "decode:3")
        assert engine.public.post("/v1/completions", json=body).status_code == 200
        assert not engine.idle()
        assert engine.admin.post("/admin/release", json={"hold_id": hold}).is_success
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) == 6 + 2


def test_tokenize_metrics_and_health(engine):
    """The small routes over a real socket."""
    tokens = engine.public.post("/tokenize", json={"prompt": LONG}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert len(tokens["digests"]) == tokens["count"] // CONFIG.memory.block_size
    page = engine.public.get("/metrics").text
    assert 'headrace_router_worker_state{model="simulated",worker="1",state="in_rotation"} 1.0' in page
    assert "process_resident_memory_bytes" in page
    assert engine.public.get("/ready").status_code == engine.public.get("/live").status_code == 200
    assert engine.public.get("/admin/state").status_code == 404, "the admin door is not on the public port"


async def _read_streams(
    url: str, count: int, tokens: int, all_began: asyncio.Event
) -> list[tuple[float, list[Any]]]:
    """Run ``count`` streams at once; for each when it ended and its events."""

    async def one(client: httpx.AsyncClient, number: int) -> tuple[float, list[Any]]:
        body = {"model": "simulated", "prompt": f"{number} {LONG}", "max_tokens": tokens, "stream": True}
        events: list[Any] = []
        async with client.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    events.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
                    began.add(number)
                    if len(began) == count:
                        all_began.set()
        return time.monotonic(), events

    began: set[int] = set()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30, limits=limits) as client:
        return await asyncio.gather(*(one(client, number) for number in range(count)))


def test_kill_9_of_a_worker_during_streams(engine):
    """Its streams end with one error event within 2 s, the others complete, queued requests go on
    elsewhere, and the worker is back."""
    before = {worker["worker"]: worker["pid"] for worker in engine.workers()}

    async def drill() -> tuple[float, list[tuple[float, list[Any]]], list[httpx.Response]]:
        all_began = asyncio.Event()
        streams = asyncio.create_task(_read_streams(engine.url, 8, 300, all_began))
        async with asyncio.timeout(10):
            await all_began.wait()
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=30) as client:
            late = [
                asyncio.create_task(
                    client.post(
                        "/v1/completions", json={"model": "simulated", "prompt": f"late {n}", "max_tokens": 4}
                    )
                )
                for n in range(6)
            ]
            await asyncio.sleep(0)
            os.kill(before[1], signal.SIGKILL)
            killed = time.monotonic()
            return killed, await streams, await asyncio.gather(*late)

    killed, streams, late = asyncio.run(drill())
    lost = [(ended, events) for ended, events in streams if "error" in events[-1]]
    assert lost, "some stream ran on the killed worker"
    assert len(lost) < len(streams), "and some did not"
    for ended, events in streams:
        if "error" in events[-1]:
            assert ended - killed < 2
            assert events[-1]["error"]["code"] == "worker_lost"
            assert events[-1]["error"]["retriable"] is True
            assert "[DONE]" not in events
        else:
            assert events[-1] == "[DONE]"
    assert [response.status_code for response in late] == [200] * 6
    until(lambda: all(worker["state"] == "in_rotation" for worker in engine.workers()))
    after = {worker["worker"]: worker["pid"] for worker in engine.workers()}
    assert after[0] == before[0]
    assert after[1] != before[1]
    until(engine.idle, 5)
    assert engine.broken_invariants() == []


def test_sigterm_lets_streams_end(tmp_path):
    """Not ready at once, the stream that runs completes, exit code 0, no process left (E53)."""
    engine = start(tmp_path, dataclasses.replace(CONFIG, workers=1))
    pids = [worker["pid"] for worker in engine.workers()]
    body = {"model": "simulated", "prompt": LONG, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with engine.public.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        engine.process.send_signal(signal.SIGTERM)
        until(lambda: engine.admin.get("/admin/state").is_success)
        with httpx.Client(base_url=engine.url, trust_env=False) as other:
            until(lambda: other.get("/ready").status_code == 503)
            refused = other.post("/v1/completions", json={**body, "stream": False})
            assert refused.json()["error"]["code"] == "draining"
        assert list(lines)[-2] == "data: [DONE]"
    assert stop(engine) == 0
    assert gone(pids)


def test_workers_end_with_the_engine(tmp_path):
    """kill -9 of the engine's own process leaves no worker behind, a frozen one included."""
    engine = start(tmp_path, CONFIG)
    pids = [worker["pid"] for worker in engine.workers()]
    assert engine.admin.post("/admin/workers/0/freeze").is_success
    engine.process.kill()
    assert stop(engine) == -signal.SIGKILL
    until(lambda: gone(pids), 2)
    assert stop(start(tmp_path, dataclasses.replace(CONFIG, workers=1))) == 0
    folders = Path(tempfile.gettempdir()).glob(f"headrace-{engine.process.pid}-*")
    assert not list(folders), "the next engine clears away what a killed one left"


def test_an_engine_that_cannot_start_says_why(tmp_path):
    """A worker that ends before it is warm ends the start, exit code 1; a wrong file is said at once."""
    write_config(tmp_path / "engine.json", dataclasses.replace(CONFIG, workers=1))
    command = [sys.executable, "-m", "engine", "--config", str(tmp_path / "engine.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: children.read_text().split())
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "worker 0 keeps ending (killed by SIGKILL)" in err
    (tmp_path / "engine.json").write_text('{"admission": {"policy": "whim"}}')
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        "engine.json: admission.policy: 'whim' is none of prompt, estimate, peak, lifetime" in result.stderr
    )


def test_heartbeats_go_on_while_a_step_runs():
    """A long step is no silence: heartbeats come from their own thread (F35, case C19 f)."""
    config = dataclasses.replace(CONFIG, workers=1, cost=CostModel(a=1.5, b=0, c=0))
    said: list[tuple[float, FromWorker]] = []

    async def main() -> None:
        pool = ProcessPool(config)
        await pool.start(lambda _, message: said.append((time.monotonic(), message)), lambda *_: None)
        try:
            async with asyncio.timeout(20):
                while not any(isinstance(message, Hello) for _, message in said):
                    await asyncio.sleep(0.01)
                tokens = Tokens("I", range(20))
                pool.send(0, Submit(Request(1, tokens, b"", (), 1, sampling=Sampling(ignore_eos=True))))
                while not any(isinstance(message, TokensOut) for _, message in said):
                    await asyncio.sleep(0.01)
        finally:
            await pool.stop()

    asyncio.run(main())
    running = [t for t, beat in said if isinstance(beat, Heartbeat) and beat.step_started is not None]
    assert len(running) >= 4
    assert max(b - a for a, b in itertools.pairwise(running)) < 1.0
