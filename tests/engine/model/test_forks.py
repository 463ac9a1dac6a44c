"""Several choices of one request on a real model: each says what it would say alone."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine import messages as m  # noqa: E402
from engine.config import EngineConfig, MemoryConfig, SchedulerConfig  # noqa: E402
from engine.model.decoder import Decoder  # noqa: E402
from engine.model.weights import random_tensors  # noqa: E402
from engine.request import Finish, Request, Sampling  # noqa: E402
from engine.runner.base import Row, StepPlan  # noqa: E402
from engine.runner.torch_runner import TorchRunner  # noqa: E402
from engine.worker import Worker  # noqa: E402
from tests.engine.said import apart  # noqa: E402

pytestmark = pytest.mark.torch
BLOCK, COUNT = 4, 10
HOW = Sampling(temperature=1.0, seed=11, ignore_eos=True, logprobs=0)


@pytest.fixture
def runner(small_config):
    untied = replace(small_config, tied=False)  # a tied random model only repeats its input
    return TorchRunner(Decoder(untied, random_tensors(untied, 0)), frozenset({258}))


def alone(runner, prompt, choice):
    """Its tokens, computed one by one over blocks of its own."""
    runner.allocate(20, BLOCK)
    tokens, start, said = prompt, 0, []
    while len(said) < COUNT:
        row = Row(1, start, tokens, tuple(range(1, 20)), True, HOW, draw=len(said), choice=choice)
        (token,) = runner.execute(StepPlan(len(said), (row,))).tokens
        said.append(token)
        start, tokens = start + len(tokens), array("I", [token])
    return said


def serve(runner, prompt, n, blocks, policy="lifetime"):
    """What a worker gives for ``n`` choices: texts, log probabilities told, and the end."""
    runner.allocate(blocks, BLOCK)
    base = EngineConfig()
    config = replace(
        base,
        memory=MemoryConfig(kv_blocks=blocks, block_size=BLOCK),
        scheduler=SchedulerConfig(prefill_chunk=6),
        admission=replace(base.admission, policy=policy),
    )
    facts = {"max_positions": runner.max_positions, "vocabulary": runner.vocabulary}
    worker = Worker(config, 0, "w", eos_ids=runner.eos_ids, **facts)
    for id in (1, 2):
        request = Request(id, prompt, b"root" * 4, (), COUNT, sampling=HOW, n=n)
        worker.receive(m.Submit(request), 0)
    said, now = {}, 0
    while (plan := worker.plan(now)) is not None:
        now += 1_000_000
        worker.commit(plan, runner.execute(plan), now)
        for message in apart(worker.take_outbox()):
            if isinstance(message, m.TokensOut):
                said.setdefault((message.id, message.choice), []).extend(message.ids)
                assert [each.token for each in message.logprobs] == list(message.ids)
            elif isinstance(message, m.Done):
                assert message.reason is Finish.LENGTH
    assert worker.idle
    assert worker.audit()["violations"] == []
    return said, worker


@pytest.mark.parametrize("length", [5, 8, 11])
def test_each_choice_is_as_alone(runner, length):
    """With a partial block to copy and without; two requests of three choices at once."""
    prompt = array("I", [(7 * i + 3) % 256 for i in range(length)])
    expected = {choice: alone(runner, prompt, choice) for choice in range(3)}
    assert len({tuple(text) for text in expected.values()}) == 3
    said, _ = serve(runner, prompt, 3, 64)
    assert said == {(id, choice): text for id in (1, 2) for choice, text in expected.items()}


def test_preempted_choices_are_as_alone(runner):
    """In a pool that is too small for all of them choices are computed again, one by one."""
    prompt = array("I", [(7 * i + 3) % 256 for i in range(9)])
    expected = {choice: alone(runner, prompt, choice) for choice in range(3)}
    said, worker = serve(runner, prompt, 3, 13, "prompt")
    assert worker.meter.get("headrace_engine_preemptions_total", cause="memory") > 0
    assert said == {(id, choice): text for id in (1, 2) for choice, text in expected.items()}
