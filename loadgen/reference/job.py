"""What one process of the reference server is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.reference.script import Script


@dataclass(frozen=True, slots=True)
class ServerJob:
    """Paths as text, so that the whole is JSON."""

    script: Script
    host: str = "127.0.0.1"
    port: int = 0
    shared: bool = False
    """Other processes listen on the same port."""
    process: int = 0
    folder: str | None = None
    """Where each process keeps its log as ``reference-K.log``; None = no log."""
    cpus: tuple[int, ...] = ()
    """Where it may run; empty = anywhere."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: Mapping[str, Any]) -> ServerJob:
        """Raises TypeError for keys that no field has."""
        fields = dict(data)
        fields["script"] = Script.of(fields["script"])
        fields["cpus"] = tuple(fields.get("cpus", ()))
        return ServerJob(**fields)
