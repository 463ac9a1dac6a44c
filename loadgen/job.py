"""What a load process is told: everything but the time at which to begin."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loadgen.owncores import elsewhere
from loadgen.plan import Shot
from loadgen.render import Renderer
from loadgen.rules import Cap, Retries, Rules, Timeouts
from loadgen.targets import TARGETS, Dialect
from loadgen.text import Prompter, TextMaker, Unit
from loadgen.tls import default_context


@dataclass(frozen=True, slots=True)
class TargetJob:
    """Where to send and in which words. ``options`` are fields of the dialect's dataclass."""

    url: str
    dialect: str
    options: dict[str, Any] = field(default_factory=dict)
    ca: str | None = None
    """Path of the certificates (PEM) that https is verified by; None = those of the system."""

    def tls(self) -> ssl.SSLContext | None:
        """How https is verified; None for http. Raises OSError if there is no certificate in ``ca``."""
        return default_context(self.ca) if self.url.startswith("https://") else None

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
    attempts: str = ""
    """Where to write attempts that were followed by another one."""
    slice: int | None = None
    tag: str = "run"
    """Begins every request id."""
    nonce: str | None = None
    """Of a cold run; None leaves prompts as they are."""
    unit: Unit = "word"
    tokenizer: str | None = None
    """Path of the target's tokenizer.json, for prompts of exact lengths; None = ``unit`` has to do."""
    whole: tuple[str, ...] = ()
    """Classes whose answers are not streamed."""
    rules: Rules = Rules()
    warm_connections: int = 8
    connections: int | None = None
    """Most connections at a time; None = as many as there are requests in flight."""
    own_cores: bool | None = None
    """Nothing else that counts is to run on its cores; None = if the target is on another machine."""
    block: tuple[float, float] | None = None
    """(for, every) in s: block the event loop on purpose, to show what that does to the numbers."""
    t0_ns: int | None = None
    """On CLOCK_MONOTONIC; None = told later, by ``{"start": ns}``."""
    observed: str | None = None
    """Where to write what attribution may see; our own engine only."""
    texts: str | None = None
    """Where to write prompts and answers; None = they are not stored."""
    salt: int | None = None
    """Of the observed hashes; load processes of one run must share it."""

    def renderer(self, dialect: Dialect) -> Renderer:
        maker = TextMaker.made_for(self.unit, self.tokenizer)
        return Renderer(Prompter(maker, self.nonce), dialect, self.tag, frozenset(self.whole))

    def on_own_cores(self) -> bool:
        return elsewhere(self.target.url) if self.own_cores is None else self.own_cores

    def waits(self, shots: Sequence[Shot]) -> bool:
        """Whether requests wait for others, for whose answers a clerk must be run at once."""
        rules = self.rules
        return bool(rules.caps) or rules.retries.max > 0 or any(shot.due_ns is None for shot in shots)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(job: Mapping[str, Any]) -> LoadJob:
        """Raises TypeError for keys that no field has."""
        fields = dict(job)
        fields["target"] = TargetJob(**fields["target"])
        if "rules" in fields:
            fields["rules"] = _rules(fields["rules"])
        if fields.get("block") is not None:
            fields["block"] = tuple(fields["block"])
        fields["whole"] = tuple(fields.get("whole", ()))
        return LoadJob(**fields)


def _rules(rules: Mapping[str, Any]) -> Rules:
    retries = dict(rules["retries"])
    retries["on"] = tuple(retries["on"])
    caps = {name: Cap(**cap) for name, cap in rules["caps"].items()}
    return Rules(Timeouts(**rules["timeouts"]), Retries(**retries), caps)
