"""A model that the target does not list is warned of before the load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from headrace.console import Silent
from headrace.live import preflight
from headrace.prepare import load_scenario

FILE = """\
headrace: 1
seed: 1
target: {url: "http://127.0.0.1:PORT", model: m}
classes: {c: {}}
phases: {window: 1s}
load: [{class: c, arrival: {type: constant, rate: 1/s}, workload: {type: fixed, input: 3, output: 2}}]
"""
LISTS: list[list[str]] = [[], ["m", "a"], ["a", "b"], [f"n{k}" for k in range(20)]]


class Lists(BaseHTTPRequestHandler):
    models: tuple[str, ...] = ()

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": name} for name in self.models]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Lists)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("models", LISTS)
def test_what_the_target_lists_is_said_if_the_model_is_not_among_it(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: list[str]
) -> None:
    """A gateway may know more names than it tells, so the load goes on; who lists nothing says nothing."""
    monkeypatch.setattr(Lists, "models", tuple(models))
    file = tmp_path / "s.yaml"
    file.write_text(FILE.replace("PORT", str(port)))
    view = Notes()
    asyncio.run(preflight(load_scenario(file), view))
    if not models or "m" in models:
        assert view.notes == []
        return
    (note,) = view.notes
    assert f"lists {', '.join(models[:8])}" in note
    assert note.endswith("target.model is m")
    assert ("n8" in note, ".." in note) == (False, len(models) > 8)
