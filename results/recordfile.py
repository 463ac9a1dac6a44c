"""Records on disk: an Arrow stream while the run lasts, readable up to the last flush if it is killed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa

from results.record import Outcome, Record

TIMES = (
    "due",
    "dequeued",
    "start",
    "conn",
    "sent",
    "headers",
    "first_event",
    "first_token",
    "first_visible",
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
        ("faults", pa.list_(pa.string())),
        *[(name, _I64) for name in TIMES],
        ("conn_new", pa.bool_()),
        ("stamp", pa.string()),
        ("skew_ns", _I64),
        ("event_us", pa.list_(_U32)),
        ("event_tokens", pa.list_(_U16)),
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

_ATTRIBUTES = tuple(f.name for f in fields(Record))


def _batch(records: list[Record]) -> Any:
    columns = [[getattr(r, name) for r in records] for name in _ATTRIBUTES]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=RECORD_SCHEMA)


class RecordWriter:
    """Append closed records to an Arrow IPC stream.

    ``append`` only remembers the record; ``flush`` writes. Call ``flush`` at least each second, away from
    the send path. What was flushed survives a kill.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._stream = pa.ipc.new_stream(self._file, RECORD_SCHEMA)
        self._file.flush()
        self._waiting: list[Record] = []
        self.written = 0

    def append(self, record: Record) -> None:
        self._waiting.append(record)

    def flush(self) -> None:
        """Write what waits as one batch and hand it to the operating system."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._stream.write_batch(_batch(waiting))
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
    complete = True
    with path.open("rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            while True:
                batches.append(reader.read_next_batch())
        except StopIteration:
            complete = _ends_properly(path)
        except (pa.ArrowInvalid, OSError):
            complete = False
    return pa.Table.from_batches(batches, schema=RECORD_SCHEMA), complete


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


def read_list(path: Path) -> list[Record]:
    """Records of a stream as values; what a killed writer left half written is not among them."""
    table, _ = read_stream(path)
    columns = [table.column(field.name).to_pylist() for field in RECORD_SCHEMA]
    rows = (dict(zip(_ATTRIBUTES, row, strict=True)) for row in zip(*columns, strict=True))
    return [Record(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows]


def frame_of(table: Any) -> pd.DataFrame:
    """An Arrow table of records as a frame: times and counts as float64 with NaN for "did not happen".

    ns since t0 are exact in float64 up to 2**53, that is 104 days.
    """
    data: pd.DataFrame = table.to_pandas()
    for name in (*TIMES, *COUNTS, "http_status", "retry_after_s", "parent"):
        data[name] = data[name].astype("float64")
    return data


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Records in memory as the frame that a file of them would give."""
    return frame_of(pa.Table.from_batches([_batch(list(records))], schema=RECORD_SCHEMA))
