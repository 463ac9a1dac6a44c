"""The LoRA adapters that requests may name: the gateway's registry (ENGINE E39).

A name stands for content, by digest. When a name gets other content, or none, what it stood for stays with
the workers until the last request that began with it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from engine import messages as m
from engine.config import EngineConfig
from engine.fleet.backend import Rejected
from engine.model import admit_adapter, read_adapter


@dataclass(frozen=True, slots=True)
class Adapter:
    """One registered adapter. ``folder`` is where workers read it from."""

    name: str
    digest: str
    folder: str
    rank: int
    targets: tuple[str, ...]
    weights: int = 0
    """Numbers that it takes while it is resident."""

    def plain(self) -> dict[str, Any]:
        """As the admin door answers."""
        return {
            "name": self.name,
            "digest": self.digest,
            "rank": self.rank,
            "targets": list(self.targets),
            "path": self.folder,
        }


class Adapters:
    """Names, and what each worker says of the content behind them. ``tell`` reaches every worker."""

    def __init__(self, model: str, tell: Callable[[m.ToWorker], None]) -> None:
        self._model = model
        self._tell = tell
        self._named: dict[str, Adapter] = {}
        self._folders: dict[str, str] = {}
        """By digest: all that a worker must know, named or still in use."""
        self._weights: dict[str, int] = {}
        """Of the same."""
        self._unnamed: set[str] = set()
        """Those of ``_folders`` that no name stands for any more."""
        self._said: dict[int, dict[str, m.AdapterState]] = {}
        self._load_seconds = 0.0
        """What the last load took that was measured."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._named)

    def digest(self, name: str | None) -> str | None:
        """What a request that names it begins with; None for the base model. Raises Rejected (404)."""
        if name is None:
            return None
        adapter = self._named.get(name)
        if adapter is None:
            raise unknown(name, self._model, self.names)
        return adapter.digest

    def sizes(self) -> dict[str, int]:
        """Of all content that may be resident, by digest: how many numbers it is."""
        return dict(self._weights)

    def put(self, adapter: Adapter) -> None:
        """Register it, in place of what had its name. Raises ValueError if the model has that name."""
        if adapter.name == self._model:
            raise ValueError(f"{adapter.name!r} is the model's own name")
        before = self._named.get(adapter.name)
        self._named[adapter.name] = adapter
        self._keep(adapter)
        if before is not None:
            self._part(before)

    def remove(self, name: str) -> None:
        """Nobody may name it any more. Raises LookupError."""
        adapter = self._named.pop(name, None)
        if adapter is None:
            raise LookupError(unknown(name, self._model, self.names).message)
        self._part(adapter)

    def forget_unused(self, in_use: Callable[[], Collection[str | None]]) -> None:
        """Let workers drop the content that has no name any more and no request (``in_use``)."""
        for digest in sorted(self._unnamed - set(in_use())) if self._unnamed else ():
            self._unnamed.remove(digest)
            del self._folders[digest], self._weights[digest]
            self._tell(m.UnloadAdapter(digest))

    def _keep(self, adapter: Adapter) -> None:
        self._unnamed.discard(adapter.digest)
        self._folders[adapter.digest] = adapter.folder
        self._weights[adapter.digest] = adapter.weights
        self._tell(m.LoadAdapter(adapter.digest, adapter.folder))

    def _part(self, adapter: Adapter) -> None:
        """This name stands for it no longer; another one may."""
        others = [other for other in self._named.values() if other.digest == adapter.digest]
        if not others:
            self._unnamed.add(adapter.digest)
        elif self._folders[adapter.digest] not in {other.folder for other in others}:
            self._keep(others[0])

    # -- workers ------------------------------------------------------------------------------

    def introduction(self) -> list[m.LoadAdapter]:
        """What a new incarnation of a worker must hear before its first request."""
        return [m.LoadAdapter(digest, folder) for digest, folder in self._folders.items()]

    def hears(self, worker: int, state: m.AdapterState) -> None:
        self._said.setdefault(worker, {})[state.digest] = state
        self._load_seconds = self._load_seconds if state.seconds is None else state.seconds

    def worker_gone(self, worker: int) -> None:
        self._said.pop(worker, None)

    def fault(self, worker: int, digest: str | None) -> str | None:
        """Why a worker could not load it when it last tried; None if it could, or has not tried."""
        state = self._said.get(worker, {}).get(digest or "")
        return state.error if state else None

    def load_seconds(self, worker: int, digest: str | None) -> float:
        """How long a request with it would wait for it on this worker (FLEET F21)."""
        state = self._said.get(worker, {}).get(digest or "")
        return 0.0 if digest is None or (state is not None and state.loaded) else self._load_seconds

    def state(self) -> list[dict[str, Any]]:
        """Every name with, by worker, ``loaded``, ``known`` (it loads on demand) or what is wrong."""
        return [
            {
                **adapter.plain(),
                "workers": {
                    str(worker): _said(said[adapter.digest])
                    for worker, said in sorted(self._said.items())
                    if adapter.digest in said
                },
            }
            for adapter in self._named.values()
        ]


def read(config: EngineConfig, name: str, folder: str, beside: Mapping[str, int] | None = None) -> Adapter:
    """The adapter in a PEFT folder, checked against the model, and against the memory that those ``beside``
    it leave (``Adapters.sizes``; None: not at all). Raises ModelError."""
    found = read_adapter(config, folder)
    if beside is not None:
        others = [weights for digest, weights in beside.items() if digest != found.digest]
        admit_adapter(config, [*others, found.weights], name)
    return Adapter(name, found.digest, found.folder, found.rank, found.targets, found.weights)


def unknown(name: str, model: str, adapters: Collection[str]) -> Rejected:
    """The refusal of a request for a model that is not here; it lists what is."""
    there_is = ", ".join(repr(each) for each in (model, *adapters))
    return Rejected(404, "model_not_found", f"there is no model {name!r}; there is {there_is}")


def _said(state: m.AdapterState) -> str:
    return state.error or ("loaded" if state.loaded else "known")
