"""A run in real time: the engine as processes of its own, or somebody's URL, and a load process."""

from __future__ import annotations

import asyncio
import json
import os
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
from headrace.cluster import RayLoad, check_ray
from headrace.console import View
from headrace.controls import HttpControls
from headrace.errors import TargetFailed, UsageFailed
from headrace.live_load import LiveLoad
from headrace.manifest import engine_facts
from headrace.processes import Child
from headrace.site import LoadOrder, NoControls, OnTick
from loadgen.clock import Clock, monotonic
from loadgen.job import TargetJob
from loadgen.owncores import elsewhere
from scenarios.parts import engine_config, target_job
from scenarios.schema import EngineTarget, Scenario, UrlTarget

READY_LIMIT_S = 300.0
"""How long an engine may take to load and warm up."""
STOP_LIMIT_S = 40.0
_SHOWN_MODELS = 8


async def preflight(scenario: Scenario, view: View) -> None:
    """See, before a run directory is made, whether the target can be had at all. A model that a URL does not
    list is only warned of: gateways know more names than they tell.

    Raises UsageFailed for a model that cannot be loaded here or a launcher that is not installed,
    TargetFailed for a URL that does not answer.
    """
    if scenario.client.launcher == "ray":
        check_ray()
    if isinstance(scenario.target, UrlTarget):
        models = await models_of(scenario.target)
        if models and scenario.target.model not in models:
            listed = ", ".join(models[:_SHOWN_MODELS]) + (", .." if len(models) > _SHOWN_MODELS else "")
            view.note(
                f"warning: {scenario.target.url} lists {listed}; target.model is {scenario.target.model}"
            )
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
    return LiveSite(target_job(target), controls, False, {"co_located": not elsewhere(target.url)})


def limit_of(target: UrlTarget) -> int | None:
    """Most tokens, prompt and answer, that the target's model takes, where its list of models tells (as
    that of vLLM does). Raises TargetFailed if it does not answer."""
    for row in asyncio.run(_listed(target)):
        if row.get("id") == target.model and isinstance(limit := row.get("max_model_len"), int):
            return limit
    return None


async def models_of(target: UrlTarget) -> list[str]:
    """Ids of ``/v1/models``, also to see whether anybody answers. Raises TargetFailed with the reason."""
    return [str(row["id"]) for row in await _listed(target) if "id" in row]


async def _listed(target: UrlTarget) -> list[dict[str, Any]]:
    """The rows of ``/v1/models``; none if it answers something else: the first request will show."""
    job = target_job(target)
    try:
        headers = job.make().access()
    except ValueError as error:
        raise UsageFailed(str(error)) from error
    where = job.url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        async with _http(job, 10.0) as http:
            response = await http.get(where, headers=[(n.encode(), v.encode("latin-1")) for n, v in headers])
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise TargetFailed(f"{where} does not answer: {reason}", _remedy(reason)) from error
    if response.status_code in (401, 403):
        remedy = "set target.key_env to the key's variable"
        if target.key_env is not None:
            remedy = f"it does not take the key in {target.key_env}"
        raise TargetFailed(f"{where} answers {response.status_code}: {remedy}")
    try:
        rows = response.json()["data"]
    except (ValueError, KeyError, TypeError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _remedy(reason: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Name the file of the certificates that it is to be verified by in target.ca."
    return "Is the server up, and the port right?"


def _http(target: TargetJob, timeout: float) -> httpx.AsyncClient:
    """Verifies https as the load does; http has nothing to verify."""
    return httpx.AsyncClient(timeout=timeout, trust_env=False, verify=target.tls() or False)


def target_override(url: str) -> str:
    """``--target URL`` as an override of the scenario's target, its model still to be asked for."""
    return "target=" + json.dumps({"url": url, "model": ""})


def with_first_model(target: UrlTarget) -> UrlTarget:
    """The target of ``--target`` with the first model that it lists.

    Raises TargetFailed if it does not answer, UsageFailed if it lists none.
    """
    models = asyncio.run(models_of(target))
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
            async with _http(self.target, 5.0) as http:
                response = await http.get(f"{base}/metrics", headers={"Accept": "text/plain;version=0.0.4"})
        except httpx.HTTPError as error:
            raise OSError(f"/metrics: {error or type(error).__name__}") from error
        if response.status_code != 200:
            raise OSError(f"/metrics answers {response.status_code}")
        return response.text

    async def load(self, order: LoadOrder, on_tick: OnTick) -> LiveLoad:
        kind = LiveLoad if order.ray_address is None else RayLoad
        return await kind.begin(self.target, order, on_tick)

    def died(self) -> str | None:
        if self.engine is None or (code := self.engine.code()) is None:
            return None
        return f"the engine process ended by itself with exit code {code}"
