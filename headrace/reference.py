"""``bench reference``: the scripted server alone, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from headrace.errors import TargetFailed, UsageFailed
from headrace.machine import usable_cores
from loadgen.reference.group import ReferenceServer, ServerFailed
from loadgen.reference.script import Failure, Framing, Jitter, Script, Stall
from scenarios import tree
from scenarios.faulty import explain, nearest, path_of
from scenarios.forms import form, model_of

_LOOK_S = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BLOCKS: Mapping[str, type[Any]] = {
    "jitter": Jitter,
    "stalls": Stall,
    "failures": Failure,
    "framing": Framing,
}


def read_script(path: Path | None, overrides: Sequence[str]) -> Script:
    """A script from a YAML file and ``KEY=VALUE`` edits. Raises UsageFailed with every error and its line."""
    name, text = "--set", "{}"
    if path is not None:
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageFailed(f"{path}: cannot be read: {error}") from error
    try:
        root = tree.read(text, name)
        for assignment in overrides:
            tree.edit(root, assignment)
        data = tree.plain(root)
    except tree.TreeError as error:
        raise UsageFailed(*(_located(*found) for found in error.found)) from error
    try:
        script: Script = TypeAdapter(form(Script)).validate_python(data)
    except ValidationError as error:
        raise UsageFailed(*_errors(root, error)) from error
    return script


def _errors(root: yaml.Node, error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        path = path_of(detail["loc"])
        words = explain(detail)
        if detail["type"] == "extra_forbidden":
            words = f"unknown key {path[-1]!r}{nearest(str(path[-1]), _keys_at(path[:-1]))}"
        dotted = ".".join(str(step) for step in path)
        yield _located(*tree.where(root, path), f"{dotted}: {words}" if dotted else words)


def _keys_at(path: Sequence[str | int]) -> list[str]:
    """The keys that the block at ``path`` of a script may have."""
    block: Any = Script
    for step in (step for step in path if isinstance(step, str)):
        block = _BLOCKS.get(step, block)
    return [field.alias or name for name, field in model_of(block).model_fields.items()]


def _located(file: str, line: int, message: str) -> str:
    return f"{file}:{line}: {message}" if line else f"{file}: {message}"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """``processes`` share the port; process k runs on the k-th of ``cpus``, round and round. ``log``: where
    the log is at the end; without ``keep_log`` there is none."""

    host: str = "127.0.0.1"
    port: int = 0
    processes: int = 1
    cpus: tuple[int, ...] = ()
    log: Path | None = None
    keep_log: bool = True

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise UsageFailed("--processes must be at least 1")
        if self.log is not None and not self.log.parent.is_dir():
            raise UsageFailed(f"--log: there is no folder {self.log.parent} to write {self.log.name} to")
        strangers = sorted(set(self.cpus) - set(usable_cores()))
        if strangers:
            usable = ",".join(str(core) for core in usable_cores())
            raise UsageFailed(f"--cpus names cores that may not be used: {strangers}; usable are {usable}")


OnReady = Callable[[ReferenceServer], None]


def serve_reference(script: Script, options: ServeOptions, on_ready: OnReady) -> list[dict[str, Any]]:
    """Serve until SIGTERM or Ctrl-C; returns the summary of each process.

    Raises UsageFailed if it cannot begin, TargetFailed if a process of it dies.
    """
    server = ReferenceServer(script, **asdict(options))
    try:
        server.start()
    except ServerFailed as error:
        raise UsageFailed(str(error), "Choose another --port, or end what listens there.") from error
    try:
        with _told_to_stop() as stop:
            on_ready(server)
            while not stop.wait(_LOOK_S):
                if (why := server.died()) is not None:
                    raise TargetFailed(why)
            return server.stop()
    except ServerFailed as error:
        raise TargetFailed(str(error)) from error
    finally:
        server.end()


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Set by the first SIGTERM or Ctrl-C."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summary_lines(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each process in words."""
    for k, one in enumerate(summaries):
        ends = ", ".join(f"{count:,} {end.replace('_', ' ')}" for end, count in one["ends"].items() if count)
        yield (
            f"process {k}: {one['requests']:,} requests ({ends or 'none'}), {one['tokens']:,} tokens, "
            f"{one['connections']:,} connections"
        )
        yield (
            f"  late p50 {_us(one['late_p50_us'])}, p99 {_us(one['late_p99_us'])}, "
            f"most {_us(one['late_max_us'])}; {_us(one['cpu_us_per_write'])} of CPU per write, all in; "
            f"{one['cpu_share'] or 0:.0%} of a core"
        )
        if one["blocked"] or one["refused"]:
            yield (
                f"  {one['blocked']:,} writes waited for a client that did not read; "
                f"{one['refused']:,} times no connection could be accepted for want of file descriptors"
            )


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} µs"
