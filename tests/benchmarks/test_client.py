"""The benchmark of the client says what it asks of the server."""

from __future__ import annotations

import sys

import pytest

from benchmarks import client


@pytest.mark.parametrize("head", [None, "at once", "with the first"])
def test_its_server_writes_the_head_when_it_is_told_to(
    head: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["client.py", *(["--head", head] if head else [])])
    script = client._script(client._arguments())
    assert (script.ttft, script.itl, script.framing.head) == (0.05, 0.01, head or "at once")
