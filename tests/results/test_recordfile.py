"""Records on disk: bounded, whatever a target said (JOINTS 3, MEASUREMENT C38; case C-24/million)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from results.record import Outcome, Record
from results.recordfile import (
    BATCH,
    RECORD_SCHEMA,
    RecordWriter,
    frame,
    frame_of,
    iter_records,
    read_list,
    read_records,
)

Make = Callable[..., Record]
CASES = Path(__file__).parents[1] / "cases" / "loadgen"


def busy(record: Make, n: int, events: int, seed: int = 1) -> list[Record]:
    """Answers of ``events`` token events, each stamp and gap with a jitter of its own."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        gaps = 10 + rng.normal(0, 1, events - 1)
        one = record(i, due_ms=float(rng.uniform(0, 1e6)), ttft_ms=float(rng.uniform(30, 90)), gaps_ms=gaps)
        one.request_id, one.class_, one.model = f"7f3a91c2-{i}", "interactive-chat", "some/model-of-8b"
        one.event_tokens, one.n_in, one.prompt_total, one.cache_read = [1] * events, 700 + i, 700 + i, 512
        one.stamp, one.skew_ns = "kernel", int(rng.integers(500, 5000))
        made.append(one)
    return made


def test_a_million_records_are_bounded(tmp_path: Path, record: Make) -> None:
    """C-24/million, on a part of it: bytes per row and per event on disk, as a stream and as Parquet; no
    column holds a body; nothing stays in memory once it is written."""
    case = json.loads((CASES / "C-24.json").read_text())
    shot = next(v for v in case["variants"] if v["id"] == "C-24/million")
    events, expect = shot["inputs"]["events_per_request"], shot["expect"]
    most = expect["bytes_per_record_max"] + events * expect["bytes_per_event_max"]
    part = busy(record, 500, events)
    with RecordWriter(tmp_path / "records.arrow") as writer:
        empty = _held(writer)
        for _ in range(4):
            for one in part:
                writer.append(one)
            writer.flush()
            assert _held(writer) == empty
    assert writer.written == 2_000
    assert (tmp_path / "records.arrow").stat().st_size / 2_000 <= most
    pq.write_table(pa.Table.from_pandas(frame(part)), tmp_path / "records.parquet")
    assert (tmp_path / "records.parquet").stat().st_size / 500 <= most
    assert expect["raw_bodies_kept"] is False
    assert not {"body", "text", "prompt", "raw", "answer"} & set(RECORD_SCHEMA.names)


def _held(writer: RecordWriter) -> int:
    return sum(sys.getsizeof(value) for name, value in vars(writer).items() if name != "written")


def test_many_records_at_once_are_several_batches(tmp_path: Path) -> None:
    """Who reads a stream holds one batch of it at a time."""
    with RecordWriter(tmp_path / "r") as writer:
        for i in range(BATCH + 1):
            writer.append(Record(i, "chat", "window", Outcome.NOT_SENT))
        writer.flush()
    with (tmp_path / "r").open("rb") as file:
        assert [batch.num_rows for batch in pa.ipc.open_stream(file)] == [BATCH, 1]


def test_records_read_back_equal(tmp_path: Path, record: Make) -> None:
    """Every field survives; the token events can be left out, which most readers do not need."""
    one = record(3, ttft_ms=5, gaps_ms=[1.0, 0.0], event_tokens=[1, 2, 1], single=[True, False, False])
    full = replace(one, adapter="a", cap_wait=5, retry_due=7, attempt=2, last_reasoning=8, faults=["rush"])
    full = replace(full, parent=2, n_in=9, retry_after_s=0.5, warnings=["missing_done"], error="ü")
    with RecordWriter(tmp_path / "r") as writer:
        writer.append(full)
        writer.append(Record(4, "chat", "window", Outcome.NOT_SENT))
    assert read_list(tmp_path / "r") == [full, Record(4, "chat", "window", Outcome.NOT_SENT)]
    bare = replace(full, event_us=[], event_tokens=None, single=None)
    assert next(iter_records(tmp_path / "r", events=False)) == bare


def test_a_file_of_an_older_version_has_the_defaults_of_newer_columns(tmp_path: Path, record: Make) -> None:
    """Columns that were not written are as if nothing had happened."""
    newer = {"retry_due", "last_reasoning", "cap_wait", "single", "adapter"}
    whole = frame([record(0, ttft_ms=5, e2e_ms=9), record(1)])
    old = pa.Table.from_pandas(whole.drop(columns=sorted(newer)), preserve_index=False)
    found = frame_of(old)
    assert list(found.columns) == RECORD_SCHEMA.names
    assert list(found["cap_wait"]) == [0, 0]
    assert found["retry_due"].isna().all()


ODD = [
    {"n_out": -5},
    {"n_in": 2**40, "prompt_total": 2**40},
    {"n_reasoning": 10**30},
    {"http_status": 70_000},
    {"error": "broken \ud83d half"},
    {"finish": "\udc80"},
    {"finish": {"type": "stop"}},
    {"warnings": ["\ud800"]},
    {"event_us": [0, 5, 2**32], "event_tokens": [1, 1, 1]},
    {"event_us": [0, -3], "single": [True, True]},
    {"event_tokens": [1, 70_000]},
    {"coalesced": -1},
    {"retry_after_s": "soon"},
    {"cache_read": True},
]


@pytest.mark.parametrize("odd", ODD, ids=[",".join(odd) for odd in ODD])
def test_one_odd_answer_costs_no_other_its_record(odd: dict[str, Any], tmp_path: Path, record: Make) -> None:
    """A number that no column holds is left out and said; text is kept, made readable. The records beside
    it are whole."""
    good = record(0, ttft_ms=5, gaps_ms=[1.0])
    with RecordWriter(tmp_path / "r") as writer:
        for one in (good, replace(record(1, ttft_ms=5, gaps_ms=[1.0]), **odd), replace(good, id=2)):
            writer.append(one)
    first, second, third = read_list(tmp_path / "r")
    assert (first, third) == (good, replace(good, id=2))
    for name in odd:
        kept = getattr(second, name)
        left_out = f"not_stored:{name}" in second.warnings or (
            name in ("event_tokens", "single") and "not_stored:event_us" in second.warnings
        )
        text = isinstance(kept, str) or (name == "warnings" and kept)
        assert left_out or text or kept == odd[name], (name, kept)
    data, complete = read_records(tmp_path / "r")
    assert complete
    assert len(data) == 3


VALUES = st.one_of(st.none(), st.integers(), st.floats(), st.text(st.characters(codec=None)), st.booleans())
NAMES = st.sampled_from([f.name for f in fields(Record)][4:])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(NAMES, VALUES, max_size=6))
@example(changes={"event_us": None})
@example(changes={"tenant": 0, "warnings": None})
def test_any_value_in_any_column_is_written_or_said(changes: dict[str, Any], tmp_path: Path) -> None:
    """Whatever a dialect made of an answer, the file is whole and has a row for it."""
    with RecordWriter(tmp_path / "r") as writer:
        writer.append(Record(0, "chat", "window", Outcome.COMPLETED, **changes))
        writer.append(Record(1, "chat", "window", Outcome.COMPLETED, n_out=5))
    odd, plain = read_list(tmp_path / "r")
    assert (odd.id, odd.outcome) == (0, Outcome.COMPLETED)
    assert plain == Record(1, "chat", "window", Outcome.COMPLETED, n_out=5)
