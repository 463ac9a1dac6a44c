"""Block ids: every one that is none is refused, with its file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.tracefiles import Trace, TraceError
from loadgen.tracefiles.ids import MOST_ID, id_list, run_list
from loadgen.tracefiles.recording import packed

BAD = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.integers(max_value=-1),
    st.integers(min_value=MOST_ID),
    st.just([1]),
    st.just({}),
)
GOOD = st.lists(st.integers(0, MOST_ID - 1), max_size=6)


@given(GOOD, BAD, GOOD)
def test_any_bad_id_is_refused(before: list[int], bad: Any, after: list[int]) -> None:
    """Wherever it stands, also null and also as the last one."""
    with pytest.raises(ValueError, match="is not a block id"):
        id_list([*before, bad, *after])
    for run in ([bad, 1], [1, bad], bad):
        with pytest.raises(ValueError, match=r"is not \[first id, count\]"):
            run_list([*([i, 1] for i in before), run])
    assert id_list(before) == packed(before)


def _weka(ids: list[Any]) -> dict[str, Any]:
    return {"t": 0, "type": "n", "model": "m", "in": 64 * len(ids), "out": 1, "hash_ids": ids}


def _session(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": "a", "block_size": 64, "requests": list(requests)}


def _chat(ids: list[Any]) -> dict[str, Any]:
    about = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "type": "text", "turn": 1}
    return about | {"input_length": 16 * len(ids), "output_length": 1, "hash_ids": ids}


ROWS: list[tuple[str, Callable[[list[Any]], dict[str, Any]]]] = [
    ("mooncake", lambda ids: _mooncake(ids)),
    ("bailian", _chat),
    ("weka", lambda ids: _session(_weka(ids))),
    ("weka", lambda ids: _session(_weka([1]), {"t": 1, "type": "subagent", "requests": [_weka(ids)]})),
]


def _mooncake(ids: list[Any]) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(ROWS), BAD, st.booleans())
def test_every_reader_refuses_a_bad_id(
    trace: Callable[..., Trace], row: tuple[str, Callable[..., dict[str, Any]]], bad: Any, first: bool
) -> None:
    """With file and line; a sub-agent's ids are read as strictly."""
    name, made = row
    ids = [bad, 5] if first else [5, bad]
    with pytest.raises(TraceError) as caught:
        trace(name, json.dumps(made(ids)) + "\n")
    assert {(Path(file).name, line) for file, line, _ in caught.value.found} == {(f"trace.{name}", 1)}
