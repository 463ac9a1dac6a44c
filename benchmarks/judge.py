"""Judging a large run: the most memory that it takes, and the time of each stage.

    python -m benchmarks.judge --requests 1000000 --tokens 50

A made-up run of an endpoint is written as load processes leave it. Then a process of its own does what the
end of a run does: read the records for the invariants, gather them, judge, draw the report. Prints a table,
then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from results.alone import by_company
from results.judging import SECOND, ClassGoal, Judging
from results.record import Outcome, Record
from results.recordfile import BATCH, RECORD_SCHEMA, TIMES, packed, read_list
from results.report.html import render
from results.run import Run, RunData
from results.summary import judge, summary_bytes

RATE = 1500.0
MB = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        return _judge(asked.folder)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        make_run(path, asked.requests, asked.tokens)
        command = [sys.executable, "-m", "benchmarks.judge", "--folder", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        print(f"{row['stage']:<28}{row['seconds']:8.1f} s{row['peak_mb']:10,.0f} MB at most")
    peak = max(row["peak_mb"] for row in rows)
    print(json.dumps({"requests": asked.requests, "tokens": asked.tokens, "peak_mb": peak, "stages": rows}))
    return None


def make_run(path: Path, requests: int, tokens: int) -> None:
    """Four streams of records, and a plan of their ids, of a run of two classes."""
    window = (0, round(requests / RATE * SECOND))
    goals = {name: ClassGoal(slo={"ttft_sched": 0.5, "itl": 0.05}) for name in ("chat", "batch")}
    judging = Judging("made-up", 1, goals, window, ("chat.ttft_sched.p99 < 1s",), plan_digest="0" * 32)
    run = Run.create(path, judging, "# made up\n")
    run.close()
    (path / "records.arrow").unlink()
    batches = _batches(requests, tokens)
    for part in range(4):
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(str(path / f"records-{part}.arrow"), RECORD_SCHEMA, options=options) as stream:
            for k, batch in enumerate(batches(part)):
                del k
                stream.write_batch(batch)


def _batches(requests: int, tokens: int) -> Callable[[int], Iterator[Any]]:
    rng = np.random.default_rng(5)
    pattern = packed([_record(i, tokens, rng) for i in range(min(BATCH, requests))])

    def of(part: int) -> Iterator[Any]:
        for at in range(part * BATCH, requests, 4 * BATCH):
            yield _moved(pattern.slice(0, min(BATCH, requests - at)), at)

    return of


def _record(id: int, tokens: int, rng: np.random.Generator) -> Record:
    due = round(id / RATE * SECOND)
    start = due + int(rng.integers(20_000, 90_000))
    first = start + round(rng.lognormal(0, 0.3) * 50e6)
    gaps = rng.lognormal(0, 0.3, tokens - 1) * 10_000
    events = [0, *np.cumsum(gaps).astype(int).tolist()]
    last = first + events[-1] * 1000
    return Record(
        id,
        "chat" if rng.random() < 0.8 else "batch",
        "window",
        Outcome.COMPLETED if rng.random() < 0.98 else Outcome.RESET,
        session=id,
        request_id=f"{id:012d}",
        model="made-up",
        due=due,
        dequeued=due - 1000,
        start=start,
        conn=start,
        sent=start + 20_000,
        headers=first - 50_000,
        first_event=first,
        first_token=first,
        first_visible=first,
        last_token=last,
        terminal=last + 100_000,
        closed=last + 150_000,
        stamp="kernel",
        event_us=events,
        event_tokens=[1] * tokens,
        n_in_asked=200,
        n_in=208,
        n_out_asked=tokens,
        n_out=tokens,
        n_out_source="usage",
        prompt_total=208,
        cache_read=int(rng.integers(0, 13)) * 16,
        finish="length",
        http_status=200,
    )


def _moved(batch: Any, by: int) -> Any:
    """The same records later: other ids, other times."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in ("id", "session"):
        columns[name] = pc.add(columns[name], pa.scalar(by, pa.uint32()))
    for name in TIMES:
        columns[name] = pc.add(columns[name], pa.scalar(round(by / RATE * SECOND), pa.int64()))
    columns["request_id"] = pc.cast(columns["id"], pa.string())
    return pa.record_batch(list(columns.values()), schema=RECORD_SCHEMA)


def _judge(folder: Path) -> None:
    stages: list[dict[str, Any]] = []
    data = _stage(stages, "gather the records", lambda: _gathered(folder, stages))
    summary = _stage(stages, "judge", lambda: judge(data))
    _stage(stages, "draw the report", lambda: (summary_bytes(summary), render(data, summary)))
    print(json.dumps(stages))


def _gathered(folder: Path, stages: list[dict[str, Any]]) -> RunData:
    """As the end of a run does it: the records as values are only needed until then."""
    records = _stage(stages, "read for the invariants", lambda: _read(folder))
    alone = _stage(stages, "alone, by company", partial(by_company, records))
    del records
    document = json.loads((folder / "judging.json").read_text())["judging"]
    run = Run(folder, Judging.from_dict(document), _Closed(), None)  # type: ignore[arg-type]
    return run.finish(signals={}, alone=alone)


class _Closed:
    """The stream of a run that has others'."""

    def close(self) -> None: ...


def _read(folder: Path) -> list[Record]:
    return [one for path in sorted(folder.glob("records-*.arrow")) for one in read_list(path, events=False)]


def _stage(stages: list[dict[str, Any]], name: str, work: Callable[[], Any]) -> Any:
    with Watch() as watch:
        found = work()
    stages.append({"stage": name, "seconds": round(watch.seconds, 2), "peak_mb": round(watch.peak_mb)})
    return found


class Watch:
    """The most resident memory of this process while it is open, looked at every 20 ms."""

    def __enter__(self) -> Watch:
        self.peak_mb, self.seconds, self._over = _resident_mb(), time.perf_counter(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.peak_mb = max(self.peak_mb, _resident_mb())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.seconds = time.perf_counter() - self.seconds
        self.peak_mb = max(self.peak_mb, _resident_mb())


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / MB
    return 0.0


if __name__ == "__main__":
    main()
