"""The run directory: written as it goes, readable after a kill (ARCHITECTURE 8, JOINTS 3, 5)."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest

from results.judging import SECOND, ClassGoal, HealthLimits, Judging, Users
from results.record import Outcome, Record
from results.recordfile import RECORD_SCHEMA, RecordWriter, read_records, read_stream
from results.run import Run, RunError
from results.summary import judge, summary_bytes

JUDGING = Judging(
    "s",
    3,
    {"chat": ClassGoal(1, {"ttft": 0.5}, ("stop",), False, False, 12)},
    (0, SECOND),
    ("attainment >= 1%",),
    limits=HealthLimits(offered=0.1, offered_degraded=0.2),
    timeouts={"total": 30.0},
    users={"chat": Users((7, 9), SECOND)},
)


def test_schema_follows_the_record() -> None:
    """The columns are the record's fields in order, ``class_`` being ``class``."""
    assert [f.name.rstrip("_") for f in fields(Record)] == RECORD_SCHEMA.names


def test_judging_survives_json() -> None:
    """What is stored judges the same."""
    assert Judging.from_json(JUDGING.to_json()) == JUDGING


def test_flushed_records_survive_a_kill(tmp_path: Path, record: Callable[..., Record]) -> None:
    """Without close, what was flushed is there and what was not is missing."""
    writer = RecordWriter(tmp_path / "records.arrow")
    for i in range(5):
        writer.append(record(i, ttft_ms=100, e2e_ms=200, faults=["rush"]))
    writer.flush()
    writer.append(record(5))
    data, complete = read_records(tmp_path / "records.arrow")
    assert list(data["id"]) == [0, 1, 2, 3, 4]
    assert list(data["faults"][0]) == ["rush"]
    assert not complete
    writer.close()
    data, complete = read_records(tmp_path / "records.arrow")
    assert len(data) == 6
    assert complete


def test_any_prefix_of_the_bytes_is_readable(tmp_path: Path, record: Callable[..., Record]) -> None:
    """A file cut anywhere gives the batches that are whole."""
    with RecordWriter(tmp_path / "records.arrow") as writer:
        for i in range(3):
            writer.append(record(i))
            writer.flush()
    content = (tmp_path / "records.arrow").read_bytes()
    seen = set()
    for size in range(0, len(content) + 1, 97):
        (tmp_path / "cut").write_bytes(content[:size])
        table, complete = read_stream(tmp_path / "cut")
        seen.add(table.num_rows)
        assert not complete or size == len(content)
    assert seen == {0, 1, 2, 3} or seen == {0, 1, 2}


def test_absent_is_absent(tmp_path: Path) -> None:
    """None comes back as missing, zero as zero."""
    with RecordWriter(tmp_path / "r") as writer:
        writer.append(Record(0, "chat", "window", Outcome.NOT_SENT, cache_read=0))
    data, _ = read_records(tmp_path / "r")
    assert data["start"].isna().all()
    assert list(data["cache_read"]) == [0.0]
    assert data["event_tokens"][0] is None


def write_run(path: Path, record: Callable[..., Record]) -> Run:
    run = Run.create(path, JUDGING, "headrace: 1\n", pd.DataFrame({"id": [0, 1, 2]}), {"host": "h"})
    for i in range(3):
        run.records.append(record(i, class_="chat", ttft_ms=100, e2e_ms=200))
    run.fault({"id": "rush", "type": "burst", "target": "chat", "injected": 1, "proven": 2, "healed": 3})
    run.audit({"when": "after", "workers": [{"worker": 0, "leaked_blocks": 0}]})
    return run


def test_finished_run_reads_back_as_it_was_judged(tmp_path: Path, record: Callable[..., Record]) -> None:
    """Judging a loaded run gives the very bytes of the first judgement."""
    with write_run(tmp_path / "run", record) as run:
        data = run.finish(
            signals={"cpu_ratio": 0.5, "lost": 0},
            scrapes=[{"t": 1, "target": "e", "name": "x", "labels": {"b": "1"}, "value": 2}],
            truth=[{"id": "r0", "attempt": 1, "misses": [{"reason": "never_computed"}]}],
            invariants=[{"id": "I1", "verdict": "pass", "evidence": ""}],
        )
    loaded = Run.load(tmp_path / "run")
    assert loaded.incomplete is None
    assert loaded.manifest["host"] == "h"
    assert summary_bytes(judge(loaded)) == summary_bytes(judge(data))
    assert not (tmp_path / "run" / "records.arrow").exists()
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "manifest.json",
        "scenario.yaml",
        "judging.json",
        "plan.parquet",
        "records.parquet",
        "faults.jsonl",
        "audits.jsonl",
        "scrapes.parquet",
        "truth.parquet",
    }


def test_killed_run_can_be_judged_and_says_so(tmp_path: Path, record: Callable[..., Record]) -> None:
    """A run that never finished is inconclusive, with the reason among its findings."""
    run = write_run(tmp_path / "run", record)
    run.records.flush()
    with (tmp_path / "run" / "faults.jsonl").open("a") as file:
        file.write('{"id": "half a li')
    data = Run.load(tmp_path / "run")
    assert data.incomplete is not None
    assert "killed" in data.incomplete
    assert len(data.faults) == 1
    summary = judge(data)
    assert summary["verdict"] == "inconclusive"
    assert summary["exit"] == 4
    assert "incomplete" in [f["code"] for f in summary["findings"]]
    run.close()


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, record: Callable[..., Record]) -> None:
    """Loading says what is missing; creating refuses to write over a run."""
    with pytest.raises(RunError, match="not a run directory"):
        Run.load(tmp_path)
    write_run(tmp_path / "run", record).close()
    with pytest.raises(RunError, match="already holds a run"):
        write_run(tmp_path / "run", record)


def test_records_list_the_faults_that_their_lives_touch(
    tmp_path: Path, record: Callable[..., Record]
) -> None:
    """Beside what the plan marked: every span that a life meets; cancels touch only their own requests."""
    with Run.create(tmp_path / "run", JUDGING, "headrace: 1\n") as run:
        run.records.append(record(0, due_ms=0, ttft_ms=10, e2e_ms=900, faults=["hangup"]))
        run.records.append(record(1, due_ms=0, ttft_ms=10, e2e_ms=400))
        run.records.append(record(2, due_ms=600, ttft_ms=10, e2e_ms=20))
        run.records.append(record(3, outcome="not_sent", due_ms=600))
        run.records.append(record(4, due_ms=12_000, ttft_ms=10, e2e_ms=20))
        times = {"injected": 500 * 10**6, "healed": 700 * 10**6}
        run.fault({"id": "hangup", "type": "cancel"} | times)
        run.fault({"id": "crash", "type": "kill_worker"} | times)
        run.fault({"id": "late", "type": "kill_worker", "injected": None})
        data = run.finish()
    expected = [["hangup", "crash"], [], ["crash"], [], []]
    assert [list(f) for f in data.records["faults"]] == expected
    stored = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert [list(f) for f in stored["faults"]] == expected


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("judging.json", "{", "judging.json: not JSON"),
        ("judging.json", "[]", "judging.json: expected an object"),
        ("judging.json", "{}", "judging.json: not what a run leaves"),
        ("judging.json", '{"judging": {"window": []}}', "judging.json: not what a run leaves"),
        ("manifest.json", "[", "manifest.json: not JSON"),
        ("faults.jsonl", '{"id": "a"}\n{"id"\n', "faults.jsonl:2: not JSON"),
    ],
)
def test_a_spoiled_file_is_named(
    file: str, text: str, says: str, tmp_path: Path, record: Callable[..., Record]
) -> None:
    """With its line where it has lines; nothing of it is taken for a fault of the program."""
    write_run(tmp_path / "run", record).close()
    (tmp_path / "run" / file).write_text(text)
    with pytest.raises(RunError) as caught:
        Run.load(tmp_path / "run")
    assert says in str(caught.value)
