"""A run on disk (ARCHITECTURE 8, JOINTS 5): written while it goes, readable even if it was killed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from results.judging import Judging
from results.recordfile import (
    RECORD_SCHEMA,
    RecordWriter,
    frame,
    frame_of,
    read_records,
    read_stream,
)
from results.runfiles import RunError, by_id, json_document, lines, load_records, parquet, truth_frame
from results.spans import touched

__all__ = ["RECORD_SCHEMA", "RecordWriter", "Run", "RunData", "RunError", "frame", "read_records"]

SCHEMA_VERSION = 1
Rows = Iterable[Mapping[str, Any]]


@dataclass(slots=True)
class RunData:
    """Everything the judge, the reports and comparisons look at."""

    judging: Judging
    records: pd.DataFrame
    """One row per request, its last attempt; columns of JOINTS 3, see ``results.recordfile.frame_of``."""
    plan: pd.DataFrame | None = None
    """plan.parquet; only ``id`` is needed (a planned request without a record is lost)."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    audits: list[dict[str, Any]] = field(default_factory=list)
    scrapes: pd.DataFrame | None = None
    """``t`` (ns), ``target``, ``name``, ``labels`` (JSON with sorted keys), ``value``."""
    truth: pd.DataFrame | None = None
    signals: dict[str, Any] = field(default_factory=dict)
    """Client health as the load process saw it (see results.validity)."""
    invariants: list[dict[str, Any]] | None = None
    """``{id, verdict: pass|fail|not_judged, evidence}`` per drill invariant; None = not checked."""
    attribution: dict[str, Any] | None = None
    """Roll-up of results.attribution."""
    interrupted: bool = False
    target_error: str | None = None
    """The target was unreachable, never ready, or died without a scripted fault: exit 3."""
    incomplete: str | None = None
    """Why this run is only a prefix, if it is."""
    manifest: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    attempts: pd.DataFrame | None = None
    """Every attempt that another one followed, same columns; None = no request was tried again."""
    alone: dict[int, float] | None = None
    """By request id: s that it takes on the idle target, hits kept. None = nobody can tell."""
    ideal: dict[str, int] | None = None
    """By request id as it was sent: prompt tokens that endless caches of the workers would have served."""


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _line(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, default=str) + "\n"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str) + "\n"


def scrape_frame(rows: Rows) -> pd.DataFrame:
    """Scraped samples as a frame; ``labels`` may be a mapping or JSON text."""
    flat = [
        {
            "t": int(row["t"]),
            "target": str(row["target"]),
            "name": str(row["name"]),
            "labels": row["labels"]
            if isinstance(row["labels"], str)
            else json.dumps(dict(row["labels"]), sort_keys=True),
            "value": float(row["value"]),
        }
        for row in rows
    ]
    return pd.DataFrame(flat, columns=["t", "target", "name", "labels", "value"])


@dataclass(slots=True)
class Run:
    """A run directory that is being written.

    ``records`` takes closed records while the load runs; faults and audits are appended as they happen;
    ``finish`` writes the rest and gives back what the judge needs.
    """

    path: Path
    judging: Judging
    records: RecordWriter
    plan: pd.DataFrame | None
    _faults: list[dict[str, Any]] = field(default_factory=list)
    _audits: list[dict[str, Any]] = field(default_factory=list)
    _manifest: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def create(
        path: Path,
        judging: Judging,
        scenario: str,
        plan: pd.DataFrame | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> Run:
        """Make the directory and write all that is known before t0. ``scenario`` is the resolved YAML.

        Raises RunError if the directory already holds a run.
        """
        if (path / "judging.json").exists():
            raise RunError(f"{path}: already holds a run; choose another --out")
        path.mkdir(parents=True, exist_ok=True)
        known = dict(manifest or {}) | {"schema": SCHEMA_VERSION, "plan_digest": judging.plan_digest}
        (path / "manifest.json").write_text(_json(known))
        (path / "scenario.yaml").write_text(scenario)
        (path / "judging.json").write_text(_json({"schema": SCHEMA_VERSION, "judging": asdict(judging)}))
        if plan is not None:
            plan.to_parquet(path / "plan.parquet", index=False)
        return Run(path, judging, RecordWriter(path / "records.arrow"), plan, _manifest=known)

    def fault(self, window: Any) -> None:
        """Append a fault window (dataclass or mapping), once it has ended or was given up."""
        self._faults.append(_plain(window))
        with (self.path / "faults.jsonl").open("a") as file:
            file.write(_line(window))

    @property
    def audits(self) -> list[dict[str, Any]]:
        """State audits so far, in order."""
        return list(self._audits)

    def audit(self, audit: Mapping[str, Any]) -> None:
        """Append a state audit of the target."""
        self._audits.append(dict(audit))
        with (self.path / "audits.jsonl").open("a") as file:
            file.write(_line(dict(audit)))

    def finish(
        self,
        *,
        signals: Mapping[str, Any] | None = None,
        scrapes: Rows | pd.DataFrame | None = None,
        truth: Rows | pd.DataFrame | None = None,
        invariants: list[dict[str, Any]] | None = None,
        attribution: Mapping[str, Any] | None = None,
        manifest: Mapping[str, Any] | None = None,
        interrupted: bool = False,
        target_error: str | None = None,
        load_error: str | None = None,
        alone: Mapping[int, float] | None = None,
        ideal: Mapping[str, int] | None = None,
    ) -> RunData:
        """Close the records, write what is known only now, and return everything for the judge."""
        self.records.close()
        records, attempts = self._gathered("records"), self._gathered("attempts")
        assert records is not None, "this run's own stream is there"
        pa.default_memory_pool().release_unused()  # of a million requests, more than half a GB
        data = RunData(
            self.judging,
            records,
            self.plan,
            self._faults,
            self._audits,
            scrapes if scrapes is None or isinstance(scrapes, pd.DataFrame) else scrape_frame(scrapes),
            truth_frame(truth),
            dict(signals or {}),
            invariants,
            None if attribution is None else dict(attribution),
            interrupted,
            target_error,
            load_error,
            manifest=self._manifest | dict(manifest or {}),
            path=self.path,
            attempts=attempts,
            alone=None if alone is None else dict(alone),
            ideal=None if ideal is None else dict(ideal),
        )
        self._write_rest(data)
        return data

    def _gathered(self, name: str) -> pd.DataFrame | None:
        """The streams of this name, of all load processes, as one Parquet file; None if there are none."""
        streams = sorted(self.path.glob(f"{name}*.arrow"))
        if not streams:
            return None
        table = self._with_faults(pa.concat_tables([read_stream(stream)[0] for stream in streams]))
        pq.write_table(table, self.path / f"{name}.parquet")
        for stream in streams:
            stream.unlink()
        return frame_of(table)

    def _with_faults(self, table: Any) -> Any:
        """The records with all fault windows that their lives touch, which are only known now."""
        if not self._faults:
            return table
        lives = table.select(["start", "closed", "faults"]).to_pandas()
        lists = touched(lives, self._faults, self.judging)
        at = table.schema.get_field_index("faults")
        field_ = table.schema.field(at)
        return table.set_column(at, field_, pa.array(lists, type=field_.type))

    def _write_rest(self, data: RunData) -> None:
        if data.scrapes is not None:
            data.scrapes.to_parquet(self.path / "scrapes.parquet", index=False)
        if data.truth is not None:
            data.truth.to_parquet(self.path / "truth.parquet", index=False)
        for name, known in (("alone", data.alone), ("ideal", data.ideal)):
            if known is not None:
                pairs = {"id": list(known), name: list(known.values())}
                pd.DataFrame(pairs).to_parquet(self.path / f"{name}.parquet", index=False)
        if data.attribution is not None:
            (self.path / "attribution.json").write_text(_json(data.attribution))
        (self.path / "manifest.json").write_text(_json(data.manifest))
        ends = {
            "signals": data.signals,
            "invariants": data.invariants,
            "interrupted": data.interrupted,
            "target_error": data.target_error,
            "load_error": data.incomplete,
        }
        document = {"schema": SCHEMA_VERSION, "judging": asdict(self.judging), "ends": ends}
        (self.path / "judging.json").write_text(_json(document))

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one more file, such as ``summary.json`` or ``report.html``."""
        target = self.path / name
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def close(self) -> None:
        """Idempotent; keeps records.arrow if ``finish`` was not reached."""
        self.records.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def load(path: Path) -> RunData:
        """Read a run directory, also one whose run was killed: ``incomplete`` then says what is missing."""
        document = json_document(path / "judging.json")
        if document is None:
            raise RunError(f"{path}: not a run directory (no judging.json in it)")
        if document.get("schema", 0) > SCHEMA_VERSION:
            raise RunError(f"{path}: written by a newer headrace (schema {document['schema']})")
        ends = document.get("ends")
        records, attempts, incomplete = load_records(path, ends is not None)
        try:
            judging = Judging.from_dict(document["judging"])
        except (LookupError, TypeError, AttributeError) as error:
            raise RunError(f"{path / 'judging.json'}: not what a run leaves: {error!r}") from error
        return RunData(
            judging,
            records,
            parquet(path / "plan.parquet"),
            lines(path / "faults.jsonl"),
            lines(path / "audits.jsonl"),
            parquet(path / "scrapes.parquet"),
            parquet(path / "truth.parquet"),
            (ends or {}).get("signals", {}),
            (ends or {}).get("invariants"),
            json_document(path / "attribution.json"),
            bool((ends or {"interrupted": True})["interrupted"]),
            (ends or {}).get("target_error"),
            incomplete or (ends or {}).get("load_error"),
            json_document(path / "manifest.json") or {},
            path,
            attempts,
            by_id(parquet(path / "alone.parquet"), "alone"),
            by_id(parquet(path / "ideal.parquet"), "ideal"),
        )
