"""`bench serve`: which engine it starts, and how it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engine.config import AdmissionConfig, CacheConfig, EngineConfig, SchedulerConfig
from headrace import cli, serve
from headrace.errors import UsageFailed

FILE = """\
headrace: 1
target: {engine: {model: tiny, scheduler: {max_running: 8}}}
classes: {ping: {rank: 2}}
phases: {window: 2s}
load:
  - {class: ping, arrival: {type: constant, rate: 2/s}, workload: {type: fixed, input: 8, output: 4}}
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """The configurations of the engines that would have been started; none is."""
    engines: list[EngineConfig] = []

    def keep(config: EngineConfig, *_: Any) -> None:
        engines.append(config)

    monkeypatch.setattr(serve, "serve", keep)
    monkeypatch.setattr(serve, "run", lambda _: 0)
    return engines


def bench(*arguments: str) -> None:
    """Type it. Raises what ``bench`` would tell."""
    result = CliRunner().invoke(cli.app, ["serve", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0


def test_without_a_file_a_policy_can_be_tried(started: list[EngineConfig]) -> None:
    """--set names keys of the engine block, whole or with the path that they have in a file."""
    changes = ("scheduler.prefill_chunk=64", "target.engine.cache.ttl=5m", "admission={policy: peak}")
    bench("--model", "tiny", *(word for change in changes for word in ("--set", change)))
    assert started == [
        EngineConfig(
            model="tiny",
            scheduler=SchedulerConfig(prefill_chunk=64),
            cache=CacheConfig(ttl=300.0),
            admission=AdmissionConfig(policy="peak"),
        )
    ]


def test_alone_it_is_the_engine_as_it_is(started: list[EngineConfig]) -> None:
    """Options win over --set; nothing else is changed."""
    bench("--model", "tiny", "--workers", "2", "--set", "workers=3")
    assert started == [EngineConfig(model="tiny", workers=2)]


def test_with_a_file_set_changes_the_file(started: list[EngineConfig], tmp_path: Path) -> None:
    """Its keys are those of the scenario, classes among them."""
    file = tmp_path / "mine.yaml"
    file.write_text(FILE)
    bench(str(file), "--set", "target.engine.scheduler.prefill_chunk=64", "--set", "classes.ping.rank=1")
    (engine,) = started
    assert engine.scheduler == SchedulerConfig(max_running=8, prefill_chunk=64)
    assert engine.classes["ping"].rank == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("scheduler.prefil_chunk=64", r"scheduler\.prefil_chunk: .*did you mean 'prefill_chunk'"),
        ("scheduler.prefill_chunk=-6", r"scheduler\.prefill_chunk: at least 1, not -6"),
        ("admission.policy=best", "prompt, estimate, peak, lifetime"),
        ("load.0.workload.input=6", "unknown key 'load'"),
        ("prefill_chunk", "write KEY=VALUE"),
        ("preemption=none,", "."),
    ],
)
def test_a_wrong_key_is_refused_with_the_remedy(started: list[EngineConfig], change: str, why: str) -> None:
    """What is wrong in the words that were typed, and which keys there are."""
    with pytest.raises(UsageFailed, match=why) as refused:
        bench("--model", "tiny", "--set", change)
    assert refused.value.lines[-1].endswith("engine block: --set scheduler.prefill_chunk=64")
    assert any(f"--set {change}: " in line for line in refused.value.lines)
    assert "target.engine" not in str(refused.value)
    assert started == []
