"""Every way to draw, through a worker on a real model: beside others, preempted and forked as alone."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from engine import messages as m  # noqa: E402
from engine.config import EngineConfig, MemoryConfig, SchedulerConfig  # noqa: E402
from engine.model.byte_tokenizer import ByteTokenizer  # noqa: E402
from engine.model.decoder import Decoder  # noqa: E402
from engine.model.grammar import Matchers, Schemas  # noqa: E402
from engine.model.weights import random_tensors  # noqa: E402
from engine.request import Bias, Finish, Request, Sampling  # noqa: E402
from engine.runner.base import Row, StepPlan  # noqa: E402
from engine.runner.torch_runner import TorchRunner  # noqa: E402
from engine.worker import Worker  # noqa: E402
from tests.engine.said import apart  # noqa: E402

pytestmark = pytest.mark.torch
BLOCK, MOST = 4, 24
MOST_JSON = 60
BYTES = ByteTokenizer()
TEXT = Sampling(
    temperature=1.0, seed=3, ignore_eos=True, logit_bias=tuple(Bias(i, -100.0) for i in range(256, 300))
)
THING = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "n": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["a", "n"],
    "additionalProperties": False,
}
JSON = Sampling(temperature=1.3, seed=8, schema=json.dumps(THING))
ASKS = {
    1: Sampling(),
    2: replace(TEXT, top_p=0.7, logprobs=2),
    3: replace(TEXT, repetition_penalty=1.4, presence_penalty=1.0, frequency_penalty=0.5),
    4: JSON,
    5: replace(JSON, seed=9, frequency_penalty=-0.5, logprobs=0),
    6: replace(TEXT, top_k=4, min_tokens=9, stop_ids=tuple(range(0, 256, 2))),
    7: replace(TEXT, temperature=0.0, repetition_penalty=2.0),
}
CHOICES = {2: 2, 3: 2, 4: 3, 6: 2}


@pytest.fixture(scope="module")
def schemas():
    return Schemas(BYTES)


@pytest.fixture
def runner(small_config, schemas):
    untied = replace(small_config, tied=False)  # a tied random model only repeats its input
    return TorchRunner(Decoder(untied, random_tensors(untied, 0)), BYTES.eos_ids, 1, Matchers(schemas))


def serve(runner, ids, blocks: int, policy: str = "lifetime"):
    """What a worker says for some of ASKS: tokens and logprobs by (id, choice), the ends, the worker."""
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
    for id in ids:
        prompt = array("I", [(7 * i + 3 * id) % 256 for i in range(9)])
        most = MOST if ASKS[id].schema is None else MOST_JSON
        request = Request(id, prompt, b"root" * 4, (), most, sampling=ASKS[id], n=CHOICES.get(id, 1))
        worker.receive(m.Submit(request), 0)
    said, ends, now = {}, {}, 0
    while (plan := worker.plan(now)) is not None:
        now += 1_000_000
        worker.commit(plan, runner.execute(plan), now)
        for message in apart(worker.take_outbox()):
            if isinstance(message, m.TokensOut):
                one = said.setdefault((message.id, message.choice), ([], []))
                one[0].extend(message.ids)
                one[1].extend(message.logprobs)
            elif isinstance(message, m.Done):
                ends[message.id] = message
    assert worker.idle
    assert worker.audit()["violations"] == []
    return said, ends, worker


def test_beside_others_and_preempted_as_alone(runner):
    """Seven requests with twelve choices in a pool that is too small for them: each says, token by token,
    what it says alone, and what it was asked to."""
    alone = {}
    for id in ASKS:
        alone |= serve(runner, [id], 120)[0]
    together, ends, worker = serve(runner, ASKS, 58, "prompt")
    assert worker.meter.get("headrace_engine_preemptions_total", cause="memory") > 0
    assert {key: one[0] for key, one in together.items()} == {key: one[0] for key, one in alone.items()}
    for key, (_, told) in together.items():
        assert [each.token for each in told] == [each.token for each in alone[key][1]]
        assert [each.value for each in told] == pytest.approx(
            [each.value for each in alone[key][1]], abs=1e-3
        )
    assert {done.reason for done in ends.values()} <= {Finish.STOP, Finish.LENGTH}

    texts = {key: BYTES.decode(one[0]) for key, one in together.items()}
    for choice in range(3):
        thing = json.loads(texts[4, choice])
        assert list(thing) == ["a", "n"]
    assert json.loads(texts[5, 0])["a"] in ("x", "yy")
    for choice in range(2):
        output = together[6, choice][0]
        assert all(token % 2 for token in output[:9]), "a stop id before min_tokens"
        assert output[-1] % 2 == 0
        assert all(token % 2 for token in output[:-1])
    assert len(set(together[7, 0][0])) > len(set(together[1, 0][0])), "repetition is not penalised"


def test_a_dead_end_is_its_requests_own_fault(runner):
    """The row says why, the row beside it draws, and no other worker need be asked."""
    runner.allocate(20, BLOCK)
    known = array("I", [1, 2, 3, ord("x")])  # output that does not begin an object
    stuck = Row(1, 0, known, (1, 2), True, JSON, draw=1, prompt=3, known=known)
    free = Row(2, 0, known, (3, 4), True)
    result = runner.execute(StepPlan(0, (stuck, free)))
    assert (result.tokens[0], result.failed, result.own_fault) == (None, (0,), (0,))
    assert "left the schema" in result.errors[0]
    assert result.tokens[1] is not None
