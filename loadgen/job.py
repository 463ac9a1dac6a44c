"""What a load process is told: everything but the time at which to begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loadgen.flight import Timeouts
from loadgen.render import Renderer
from loadgen.targets import TARGETS, Dialect
from loadgen.text import Prompter, TextMaker, Unit


@dataclass(frozen=True, slots=True)
class TargetJob:
    """Where to send and in which words. ``options`` are fields of the dialect's dataclass."""

    url: str
    dialect: str
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Dialect:
        """Raises ValueError for an unknown dialect, TypeError for a field that it lacks."""
        if self.dialect not in TARGETS:
            raise ValueError(f"unknown dialect {self.dialect!r}; known: {', '.join(sorted(TARGETS))}")
        return TARGETS[self.dialect](**self.options)


@dataclass(frozen=True, slots=True)
class LoadJob:
    """One load process's share of a run. Paths as text, so that the whole is JSON."""

    plan: str
    records: str
    target: TargetJob
    slice: int | None = None
    tag: str = "run"
    """Begins every request id."""
    nonce: str | None = None
    """Of a cold run; None leaves prompts as they are."""
    unit: Unit = "word"
    whole: tuple[str, ...] = ()
    """Classes whose answers are not streamed."""
    timeouts: Timeouts = Timeouts()
    warm_connections: int = 8
    t0_ns: int | None = None
    """On CLOCK_MONOTONIC; None = told later, by ``{"start": ns}``."""
    observed: str | None = None
    """Where to write what attribution may see; our own engine only."""
    texts: str | None = None
    """Where to write prompts and answers; None = they are not stored."""
    salt: int | None = None
    """Of the observed hashes; load processes of one run must share it."""

    def renderer(self, dialect: Dialect) -> Renderer:
        return Renderer(Prompter(TextMaker(self.unit), self.nonce), dialect, self.tag, frozenset(self.whole))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(job: Mapping[str, Any]) -> LoadJob:
        """Raises TypeError for keys that no field has."""
        fields = dict(job)
        fields["target"] = TargetJob(**fields["target"])
        if "timeouts" in fields:
            fields["timeouts"] = Timeouts(**fields["timeouts"])
        fields["whole"] = tuple(fields.get("whole", ()))
        return LoadJob(**fields)
