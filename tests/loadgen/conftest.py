"""Both ways in which reads are kept: by the extension, where it is built, and in Python."""

from __future__ import annotations

import pytest

from loadgen import native


def use_reads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have them kept natively or in Python for the rest of this test."""
    if kind == "python":
        monkeypatch.setattr(native, "extension", None)
    elif native.extension is None:
        pytest.skip("loadgen._harvest is not built here")


@pytest.fixture(params=["native", "python"])
def reads_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs once with each."""
    use_reads(request.param, monkeypatch)
    return str(request.param)
