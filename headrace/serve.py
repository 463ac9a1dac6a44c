"""``bench serve``: the built-in engine alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs

from engine.__main__ import run, serve
from engine.config import EngineConfig
from engine.fleet.supervisor import WorkersFailed
from engine.model import ModelError, check
from headrace import console
from headrace.errors import TargetFailed, UsageFailed
from headrace.models import obtain
from headrace.prepare import load_scenario
from scenarios.load import ScenarioError, parse
from scenarios.parts import engine_config
from scenarios.schema import EngineTarget, Scenario

_ENGINE = "target.engine."
_BARE = """\
headrace: 1
target: {engine: {}}
classes: {default: {}}
phases: {window: 1s}
load:
  - {class: default, arrival: {type: constant, rate: 1/s}, workload: {type: fixed, input: 1, output: 1}}
"""


def serve_engine(
    config: Path | None,
    model: str | None,
    workers: int | None,
    port: int,
    admin_port: int | None,
    overrides: Sequence[str],
) -> int:
    """Serve until SIGTERM or Ctrl-C, then drain; returns the exit code.

    ``overrides`` are ``KEY=VALUE`` of the scenario ``config``, without one of its engine block.
    Raises UsageFailed for a wrong file, key, model or port, TargetFailed if a worker cannot start.
    """
    engine = _engine(config, model, workers, overrides)
    obtain(engine.model)
    token = None if admin_port is None else _token_file()
    console.hint(f"starting {engine.workers} worker(s) with {engine.model} ...")

    def ready(where: dict[str, Any]) -> None:
        console.hint(f"ready on {where['url']}  (Ctrl-C drains and ends)")
        if where["admin_url"] is not None:
            console.hint(f"admin door on {where['admin_url']}, token in {token}")

    try:
        check(engine)
        return run(serve(engine, "127.0.0.1", port, admin_port, token, ready))
    except ModelError as error:
        raise UsageFailed(str(error)) from error
    except (OSError, PermissionError) as error:
        raise UsageFailed(f"{error}", "Choose another --port, or end what listens there.") from error
    except WorkersFailed as error:
        raise TargetFailed(str(error)) from error


def _engine(
    config: Path | None, model: str | None, workers: int | None, overrides: Sequence[str]
) -> EngineConfig:
    if config is None:
        engine = engine_config(_bare(overrides))
    else:
        scenario = load_scenario(config, overrides)
        if not isinstance(scenario.target, EngineTarget):
            raise UsageFailed(f"{config}: its target is a URL; there is no engine to serve")
        engine = engine_config(scenario)
    asked = {"model": model, "workers": workers}
    return replace(engine, **{key: value for key, value in asked.items() if value is not None})  # type: ignore[arg-type]


def _bare(overrides: Sequence[str]) -> Scenario:
    """A scenario whose engine block is ``overrides`` and nothing else; its load is never sent."""
    own = [key.strip().removeprefix(_ENGINE) for key in overrides]
    try:
        return parse(_BARE, "--set", [_ENGINE + key if "=" in key else key for key in own])
    except ScenarioError as error:
        wrong = (f"  {line.replace(_ENGINE, '')}" for line in error.errors)
        remedy = (
            "Without a scenario file, keys are those of its engine block: --set scheduler.prefill_chunk=64"
        )
        raise UsageFailed("the engine cannot be configured so:", *wrong, remedy) from error


def _token_file() -> Path:
    folder = platformdirs.user_runtime_path("headrace", ensure_exists=True)
    return folder / "admin.token"
