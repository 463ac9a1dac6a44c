"""Records on disk: an Arrow stream while the run lasts, readable up to the last flush if it is killed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from results.record import Outcome, Record
from results.storable import storable

TIMES = (
    "due",
    "retry_due",
    "dequeued",
    "start",
    "conn",
    "sent",
    "headers",
    "first_event",
    "first_token",
    "first_visible",
    "last_reasoning",
    "last_token",
    "terminal",
    "closed",
)
"""Stamps of MEASUREMENT C2, ns since t0."""

COUNTS = ("n_in", "n_out", "n_reasoning", "prompt_total", "cache_read", "cache_write")
SCHEMA_VERSION = 1

_U8, _U16, _U32, _I64 = pa.uint8(), pa.uint16(), pa.uint32(), pa.int64()

RECORD_SCHEMA = pa.schema(
    [
        ("id", _U32),
        ("class", pa.string()),
        ("phase", pa.string()),
        ("outcome", pa.string()),
        ("attempt", _U8),
        ("tenant", pa.string()),
        ("rank", _U8),
        ("session", _U32),
        ("branch", _U16),
        ("turn", _U16),
        ("parent", _U32),
        ("request_id", pa.string()),
        ("route", pa.string()),
        ("model", pa.string()),
        ("adapter", pa.string()),
        ("faults", pa.list_(pa.string())),
        *[(name, _I64) for name in TIMES],
        ("cap_wait", _I64),
        ("conn_new", pa.bool_()),
        ("stamp", pa.string()),
        ("skew_ns", _I64),
        ("event_us", pa.list_(_U32)),
        ("event_tokens", pa.list_(_U16)),
        ("single", pa.list_(pa.bool_())),
        ("coalesced", _U32),
        ("n_in_asked", _U32),
        ("n_in", _U32),
        ("n_out_asked", _U32),
        ("n_out", _U32),
        ("n_out_source", pa.string()),
        ("n_reasoning", _U32),
        ("k_first", _U32),
        ("streamed", pa.bool_()),
        ("prompt_total", _U32),
        ("cache_read", _U32),
        ("cache_write", _U32),
        ("finish", pa.string()),
        ("http_status", _U16),
        ("error", pa.string()),
        ("timeout_limit", pa.string()),
        ("retry_after_s", pa.float64()),
        ("cancel_missed", pa.bool_()),
        ("checks_failed", pa.list_(pa.string())),
        ("warnings", pa.list_(pa.string())),
    ],
    metadata={"headrace.schema": str(SCHEMA_VERSION)},
)
"""Columns of JOINTS 3, in the order of ``Record``'s fields; ``class_`` is ``class`` on disk."""

BATCH = 10_000
"""Most rows of a batch: what a reader that streams holds at once."""

_ATTRIBUTES = tuple(f.name for f in fields(Record))
_values_of = attrgetter(*_ATTRIBUTES)


def _batch(records: Sequence[Record]) -> Any:
    """One record batch. What a target said and no column can hold is left out of its record, with a
    warning there: one odd answer must not cost the others."""
    try:
        return packed(records)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return packed([storable(record, RECORD_SCHEMA) for record in records])


def packed(records: Sequence[Record]) -> Any:
    columns = list(zip(*map(_values_of, records), strict=True)) or [()] * len(_ATTRIBUTES)
    arrays = [_column(column, field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=RECORD_SCHEMA)


def _column(values: Sequence[Any], type_: Any) -> Any:
    """An Arrow array; long lists of numbers are flattened first, which is 20 times as fast."""
    if type_ != RECORD_SCHEMA.field("event_us").type:
        return pa.array(values, type=type_)
    values = [value or () for value in values]
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    offsets[1:] = np.cumsum([len(value) for value in values])
    flat = np.fromiter(chain.from_iterable(values), dtype=np.int64, count=int(offsets[-1]))
    numbers = pa.array(flat).cast(type_.value_type)  # refuses what does not fit, unlike numpy
    return pa.ListArray.from_arrays(pa.array(offsets), numbers)


class RecordWriter:
    """Append closed records to an Arrow IPC stream.

    ``append`` only remembers the record; ``flush`` writes. Call ``flush`` at least each second, away from
    the send path. What was flushed survives a kill. Nothing that was written stays in memory.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        # Most columns say the same in every row: packed, a row takes a third.
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._stream = pa.ipc.new_stream(self._file, RECORD_SCHEMA, options=options)
        self._file.flush()
        self._waiting: list[Record] = []
        self.written = 0

    def append(self, record: Record) -> None:
        self._waiting.append(record)

    def flush(self) -> None:
        """Write what waits and hand it to the operating system."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), BATCH):
            self._stream.write_batch(_batch(waiting[at : at + BATCH]))
        self._file.flush()
        self.written += len(waiting)

    def close(self) -> None:
        """Idempotent."""
        if self._file.closed:
            return
        self.flush()
        self._stream.close()
        self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_stream(path: Path) -> tuple[Any, bool]:
    """The Arrow table of a record stream, and whether the stream was closed properly."""
    batches: list[Any] = []
    try:
        batches.extend(_batches(path))
        complete = _ends_properly(path)
    except _BROKEN:
        complete = False
    return pa.Table.from_batches(batches, schema=RECORD_SCHEMA), complete


_BROKEN = (pa.ArrowInvalid, OSError)
"""Raised at the end of a stream that was cut off."""


def _batches(path: Path) -> Iterator[Any]:
    """One batch after the other; raises one of ``_BROKEN`` where the stream was cut off."""
    with path.open("rb") as file:
        reader = pa.ipc.open_stream(file)
        for batch in reader:
            yield _complete(batch)


def _ends_properly(path: Path) -> bool:
    """Arrow reads a stream without its end marker like a closed one; the marker tells them apart."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 8))
        return file.read() == b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read_records(path: Path) -> tuple[pd.DataFrame, bool]:
    """Records of a stream as a frame (see ``frame``), and whether the stream was closed properly."""
    table, complete = read_stream(path)
    return frame_of(table), complete


def _none() -> None:
    return None


_NO_EVENTS: dict[str, Callable[[], Any]] = {"event_us": list, "event_tokens": _none, "single": _none}


def iter_records(path: Path, *, events: bool = True) -> Iterator[Record]:
    """Records of a stream as values, one batch in memory at a time; what a killed writer left half
    written is not among them. ``events=False`` leaves their token events out."""
    with suppress(*_BROKEN):
        for batch in _batches(path):
            columns = [
                _value_column(batch.column(i), field.name, events, batch.num_rows)
                for i, field in enumerate(RECORD_SCHEMA)
            ]
            for row in zip(*columns, strict=True):
                record = Record(*row)
                record.outcome = Outcome(record.outcome)
                yield record


def _value_column(column: Any, name: str, events: bool, rows: int) -> Iterable[Any]:
    if not events and name in _NO_EVENTS:
        return (_NO_EVENTS[name]() for _ in range(rows))
    values: list[Any] = column.to_pylist()
    if pa.types.is_string(column.type):  # names of classes and the like: one object for all rows
        return (value if value is None else sys.intern(value) for value in values)
    return values


def read_list(path: Path, *, events: bool = True) -> list[Record]:
    """`iter_records` as a list. With 50 token events each, a million records take 3.2 GB with their
    events and 1.2 GB without."""
    return list(iter_records(path, events=events))


def frame_of(table: Any) -> pd.DataFrame:
    """An Arrow table of records as a frame: times and counts as float64 with NaN for "did not happen".

    ns since t0 are exact in float64 up to 2**53, that is 104 days. Columns that an older version did not
    write have their defaults.
    """
    whole = _complete(table)
    lists = [field.name for field in RECORD_SCHEMA if field.type == pa.list_(pa.string())]
    data: pd.DataFrame = whole.drop_columns(lists).to_pandas(split_blocks=True)
    for name in lists:
        data.insert(RECORD_SCHEMA.names.index(name), name, _texts(whole.column(name)))
    for name in (*TIMES, *COUNTS, "http_status", "retry_after_s", "parent"):
        data[name] = data[name].astype("float64")
    return data


NOTHING: list[str] = []
"""In the place of each list that has nothing in it, as nearly all have; nobody may change it."""


def _texts(column: Any) -> pd.Series[Any]:
    """Lists of texts, one object for all empty ones."""
    some = pc.fill_null(pc.greater(pc.list_value_length(column), 0), False).to_numpy()
    texts = np.empty(len(column), dtype=object)
    texts.fill(NOTHING)
    texts[some] = np.fromiter(column.filter(pa.array(some)).to_pylist(), dtype=object, count=int(some.sum()))
    return pd.Series(texts, dtype=object)


def _complete(table: Any) -> Any:
    """A table or batch with all columns of the schema, in their order."""
    if table.schema.names == RECORD_SCHEMA.names:
        return table
    blank, rows = packed([Record(0, "", "", Outcome.UNKNOWN)]), table.num_rows
    columns = [
        table.column(field.name)
        if field.name in table.schema.names
        else pa.array(blank.column(i).to_pylist() * rows, type=field.type)
        for i, field in enumerate(RECORD_SCHEMA)
    ]
    return type(table).from_arrays(columns, schema=RECORD_SCHEMA)


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Records in memory as the frame that a file of them would give."""
    return frame_of(pa.Table.from_batches([_batch(list(records))], schema=RECORD_SCHEMA))
