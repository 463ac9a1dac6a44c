"""A run in real time: the engine as processes of its own, or somebody's URL, and a load process."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from engine.config import EngineConfig
from engine.config_io import write_config
from engine.model import ModelError, check
from faults.fault import Controls
from headrace.console import View
from headrace.controls import HttpControls
from headrace.errors import TargetFailed, UsageFailed
from headrace.manifest import engine_facts
from headrace.processes import Child
from headrace.site import RECORDS, TEXTS, LoadEnd, LoadOrder, NoControls, OnTick
from loadgen.clock import Clock, monotonic
from loadgen.job import LoadJob, TargetJob
from loadgen.observed_io import read_observed
from scenarios.parts import engine_config, target_job
from scenarios.schema import EngineTarget, Scenario, UrlTarget

READY_LIMIT_S = 300.0
"""How long an engine may take to load and warm up."""
STOP_LIMIT_S = 40.0
WARM_CONNECTIONS = 16


async def preflight(scenario: Scenario) -> None:
    """See, before a run directory is made, whether the target can be had at all.

    Raises UsageFailed for a model that cannot be loaded here, TargetFailed for a URL that does not answer.
    """
    if isinstance(scenario.target, UrlTarget):
        await models_of(scenario.target.url, scenario.target.key_env)
        return
    try:
        check(engine_config(scenario))
    except ModelError as error:
        raise UsageFailed(str(error)) from error


@asynccontextmanager
async def live_site(scenario: Scenario, folder: Path, view: View) -> AsyncIterator[LiveSite]:
    """Start the scenario's engine, or look whether its URL answers."""
    if isinstance(scenario.target, UrlTarget):
        yield _url_site(scenario.target)
        return
    assert isinstance(scenario.target, EngineTarget)
    config = engine_config(scenario)
    view.step(f"starting the engine: {config.model}, {config.workers} worker(s)")
    async with _engine(config, folder) as site:
        yield site


@asynccontextmanager
async def _engine(config: EngineConfig, folder: Path) -> AsyncIterator[LiveSite]:
    log = folder / "engine.log"
    # Named like the engine's own: should this process be killed, the next engine clears it away.
    with tempfile.TemporaryDirectory(prefix=f"headrace-{os.getpid()}-") as private:
        config_file, token_file = Path(private) / "engine.json", Path(private) / "token"
        write_config(config_file, config)
        command = ["-m", "engine", "--config", str(config_file), "--admin-port", "0", "--with-parent"]
        engine = await Child.start([*command, "--token-file", str(token_file)], log)
        try:
            where = await _until_ready(engine, log)
            controls = HttpControls(where["admin_url"], token_file)
            target = TargetJob(
                where["url"],
                "openai_chat",
                {"model": config.model, "own": True, "ignore_eos": True, "token_ids": True},
            )
            facts = {**engine_facts(config), "engine_pid": where["pid"], "co_located": True}
            try:
                yield LiveSite(target, controls, True, facts, engine)
            finally:
                await controls.close()
        finally:
            await engine.end(STOP_LIMIT_S)


async def _until_ready(engine: Child, log: Path) -> dict[str, Any]:
    try:
        line = await asyncio.wait_for(engine.read_line(), READY_LIMIT_S)
    except TimeoutError:
        line = b""
    if not line:
        code = await engine.ended(5.0)
        raise TargetFailed(
            f"the engine never got ready (exit code {code}); the end of {log}:",
            *(f"  {text}" for text in log.read_text(errors="replace").splitlines()[-15:]),
        )
    where: dict[str, Any] = json.loads(line)
    return where


def _url_site(target: UrlTarget) -> LiveSite:
    controls = NoControls(f"{target.url} is a foreign target and has no admin door")
    local = any(host in target.url for host in ("127.0.0.1", "localhost", "[::1]"))
    return LiveSite(target_job(target), controls, False, {"co_located": local})


async def models_of(url: str, key_env: str | None) -> list[str]:
    """Ids of ``/v1/models``, also to see whether anybody answers. Raises TargetFailed with the reason."""
    headers = {}
    if key_env is not None:
        key = os.environ.get(key_env)
        if key is None:
            raise UsageFailed(
                f"the target's key should be in the environment variable {key_env}: it is not set"
            )
        headers["Authorization"] = f"Bearer {key}"
    where = url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
            response = await http.get(where, headers=headers)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise TargetFailed(
            f"{where} does not answer: {reason}", "Is the server up, and the port right?"
        ) from error
    if response.status_code in (401, 403):
        raise TargetFailed(
            f"{where} answers {response.status_code}: set target.key_env to the key's variable"
        )
    try:
        return [str(row["id"]) for row in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return []  # it answers, but lists no models: the first request will show


def target_override(url: str) -> str:
    """``--target URL`` as an override of the scenario's target, its model still to be asked for."""
    return "target=" + json.dumps({"url": url, "model": ""})


def with_first_model(target: UrlTarget) -> UrlTarget:
    """The target of ``--target`` with the first model that it lists.

    Raises TargetFailed if it does not answer, UsageFailed if it lists none.
    """
    models = asyncio.run(models_of(target.url, target.key_env))
    if not models:
        where = target.url
        raise UsageFailed(f"{where} lists no models: name it in the scenario's `target: {{url:, model:}}`")
    return replace(target, model=models[0])


@dataclass(slots=True)
class LiveSite:
    """A target behind a URL; ``engine`` is set if its process is ours."""

    target: TargetJob
    controls: Controls
    own: bool
    facts: dict[str, Any]
    engine: Child | None = None
    clock: Clock = monotonic

    async def scrape(self) -> str:
        base = self.target.url.rstrip("/").removesuffix("/v1")
        try:
            async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
                response = await http.get(f"{base}/metrics", headers={"Accept": "text/plain;version=0.0.4"})
        except httpx.HTTPError as error:
            raise OSError(f"/metrics: {error or type(error).__name__}") from error
        if response.status_code != 200:
            raise OSError(f"/metrics answers {response.status_code}")
        return response.text

    async def load(self, order: LoadOrder, on_tick: OnTick) -> LiveLoad:
        return await LiveLoad.begin(self.target, order, on_tick)

    def died(self) -> str | None:
        if self.engine is None or (code := self.engine.code()) is None:
            return None
        return f"the engine process ended by itself with exit code {code}"


class LiveLoad:
    """The load process: told what to do over its stdin, heard over its stdout (loadgen.process)."""

    def __init__(self, child: Child, order: LoadOrder, on_tick: OnTick) -> None:
        self._child = child
        self._order = order
        self._on_tick = on_tick
        self._done: dict[str, Any] | None = None
        self._error: str | None = None

    @staticmethod
    async def begin(target: TargetJob, order: LoadOrder, on_tick: OnTick) -> LiveLoad:
        """Start the process and wait until its connections are warm. Raises TargetFailed."""
        folder = order.folder
        job = LoadJob(
            plan=str(folder / "plan.parquet"),
            records=str(folder / RECORDS),
            target=target,
            tag=order.tag,
            nonce=order.nonce,
            unit=order.unit,
            whole=order.whole,
            timeouts=order.timeouts,
            warm_connections=WARM_CONNECTIONS,
            observed=str(folder / "observed.arrow") if target.options.get("own") else None,
            texts=str(folder / TEXTS) if order.keep_text else None,
            salt=secrets.randbits(63),
        )
        with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="headrace-job-", delete=False) as file:
            json.dump(job.as_dict(), file)
        child = await Child.start(["-m", "loadgen.process", file.name], folder / "load.log")
        load = LiveLoad(child, order, on_tick)
        try:
            event = await load._next()
        finally:
            Path(file.name).unlink(missing_ok=True)
        if event is None or event["event"] != "ready":
            code = await child.ended(5.0)
            why = event["message"] if event is not None else f"it ended with exit code {code}"
            raise TargetFailed(f"the load process could not begin: {why}", f"see {folder / 'load.log'}")
        return load

    def start(self, t0: int) -> None:
        self._child.tell({"start": t0})

    async def finished(self) -> LoadEnd:
        while (event := await self._next()) is not None:
            if event["event"] == "progress":
                self._on_tick(event)
            elif event["event"] == "done":
                self._done = event
                break
            elif event["event"] == "error":
                self._error = event["message"]
        if self._done is None:
            code = await self._child.ended(5.0)
            why = self._error or f"the load process died (exit code {code})"
            return LoadEnd({}, interrupted=False, lost=why)
        observed, error = None, self._done.get("observe_error")
        file = self._order.folder / "observed.arrow"
        if error is None and file.exists():
            observed = read_observed(file)
        return LoadEnd(self._done["signals"], self._done["interrupted"], observed, error)

    def stop(self) -> None:
        self._child.tell({"stop": True})

    async def close(self) -> None:
        await self._child.end(5.0)

    def cancel(self, shot: int) -> None:
        self._child.tell({"cancel": shot})

    def request_id(self, shot: int) -> str:
        return f"{self._order.tag}-{shot}"

    async def _next(self) -> dict[str, Any] | None:
        line = await self._child.read_line()
        if not line.endswith(b"\n"):  # its end, or half a line of one that was killed
            return None
        event: dict[str, Any] = json.loads(line)
        return event
