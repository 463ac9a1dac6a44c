"""The last line comes whatever ends a command (JOINTS 7)."""

from __future__ import annotations

import json
import signal

import pytest
import typer

from headrace.closing import closed_also_on_error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_load_ends_as_interrupted(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as ended, closed_also_on_error():
        signal.raise_signal(number)
    said = capsys.readouterr()
    last = json.loads(said.out.splitlines()[-1])
    assert (last["interrupted"], last["exit"], ended.value.exit_code) == (True, 4, 4)
    assert "interrupted" in said.err
    assert signal.getsignal(signal.SIGTERM) is before
