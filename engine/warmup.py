"""Warm-up before a worker says Hello (ENGINE E51): what it will be asked to do, done once for real."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable

from engine import messages as m
from engine.config import EngineConfig, TiersConfig
from engine.kv.blocks import block_digests
from engine.request import Finish, Request, Sampling, WorkerTruth
from engine.runner.base import Runner
from engine.worker import Worker

UNDECLARED_PROMPT = 2048
"""Longest warm-up prompt where no class limits its input."""
_ROOT = b"warm-up".ljust(16, b"\0")
_OUTPUT = 4


class WarmUpFailed(Exception):
    """The worker could not do what it is started for; the message says which part."""


def warm_up(config: EngineConfig, runner: Runner, clock: Callable[[], int]) -> None:
    """Serve the longest class prompt in chunks, a decode, a hit and a concurrent batch, then forget them.

    ``config.memory.kv_blocks`` is set and the runner's memory is allocated. A worker of its own does it,
    so that pool, cache and counters of the real one begin clean. Raises WarmUpFailed.
    """
    # Every control as configured, but nothing here may wait for anything or be left in a slower tier.
    admission = dataclasses.replace(config.admission, kv_headroom=0.0)
    cache = dataclasses.replace(config.cache, tiers=TiersConfig())
    worker = Worker(
        dataclasses.replace(config, admission=admission, cache=cache),
        0,
        "warm-up",
        eos_ids=runner.eos_ids,
        max_positions=runner.max_positions,
        vocabulary=runner.vocabulary,
    )
    stages = _stages(config, worker.max_model_len, runner.vocabulary)
    for name, requests in stages.items():
        truths = _serve(worker, runner, requests, clock, name)
        if name == "a hit" and config.cache.enabled and not truths[0].hit_device:
            raise WarmUpFailed("a hit: a prompt just computed was not found in the prefix cache")


def longest_prompt(config: EngineConfig, max_model_len: int) -> int:
    """Tokens of the longest prompt that a class allows, with room to generate."""
    limits = [limit for c in config.classes.values() for limit in (c.max_input, c.max_total) if limit]
    declared = max(limits, default=UNDECLARED_PROMPT)
    return max(1, min(declared, max_model_len - _OUTPUT))


def _stages(config: EngineConfig, max_model_len: int, vocabulary: int) -> dict[str, list[Request]]:
    longest = longest_prompt(config, max_model_len)
    short = min(longest, 2 * config.memory.block_size)
    size = config.memory.block_size

    def request(id: int, first: int, length: int) -> Request:
        tokens = array("I", ((first + 7 * i) % min(vocabulary, 251) for i in range(length)))
        return Request(
            id,
            tokens,
            _ROOT,
            block_digests(_ROOT, tokens, size),
            min(_OUTPUT, max_model_len - length),
            sampling=Sampling(ignore_eos=True),
            class_=next(iter(config.classes)),
        )

    stages = {"the longest prompt": [request(1, 1, longest)]}
    if longest > size:  # a hit needs a full block before the last token
        stages["a hit"] = [request(2, 1, longest)]
    stages["a concurrent batch"] = [request(3, 2, short), request(4, 3, short)]
    return stages


def _serve(
    worker: Worker, runner: Runner, requests: list[Request], clock: Callable[[], int], name: str
) -> list[WorkerTruth]:
    for request in requests:
        worker.receive(m.Submit(request), clock())
    said: list[m.FromWorker] = []
    while (plan := worker.plan(clock())) is not None:
        try:
            result = runner.execute(plan)
        except Exception as error:
            raise WarmUpFailed(f"{name}: {type(error).__name__}: {error}") from error
        worker.commit(plan, result, clock())
        said += worker.take_outbox()
    done = {message.id: message for message in said if isinstance(message, m.Done)}
    for request in requests:
        end = done.get(request.id)
        if end is None or end.reason is not Finish.LENGTH:
            how = "did not end" if end is None else f"ended {end.reason}: {end.error or 'unexpected'}"
            raise WarmUpFailed(f"{name} of {len(request.tokens)} tokens {how}")
    return [done[request.id].truth for request in requests]
