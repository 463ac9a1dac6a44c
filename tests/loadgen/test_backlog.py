"""Order and memory of what waits to be understood."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.backlog import Backlog


@given(st.lists(st.one_of(st.binary(max_size=40), st.none()), max_size=120), st.integers(0, 60))
def test_it_is_a_queue_whatever_waits_on_disk(steps: list[bytes | None], limit: int) -> None:
    """First in, first out; its length is what is in it; nothing is lost at the border of file and memory."""
    with TemporaryDirectory() as folder:
        backlog, model = Backlog(Path(folder), limit), list[bytes]()
        for step in steps:
            if step is not None:
                backlog.put(step)
                model.append(step)
            elif model:
                assert backlog.get() == model.pop(0)
            assert len(backlog) == len(model)
        assert [backlog.get() for _ in range(len(backlog))] == model
        with pytest.raises(IndexError):
            backlog.get()


def test_beyond_its_limit_it_leaves_memory_and_no_file_behind(tmp_path: Path) -> None:
    """The file has no name: whatever ends the process, the disk is clean."""
    backlog = Backlog(tmp_path, limit=100)
    for k in range(100):
        backlog.put(bytes([k]) * 10)
    assert backlog._held <= 100
    assert list(tmp_path.iterdir()) == []
    assert [backlog.get()[0] for _ in range(100)] == list(range(100))
    assert backlog._file is None
