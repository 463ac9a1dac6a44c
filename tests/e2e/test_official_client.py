"""The official client against `bench serve` with a real model: choices, logprobs, schemas, refusals."""

from __future__ import annotations

import json
import math
import re
import signal

import openai
import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCENARIO = """\
# Does the official client find everything where it looks for it?
headrace: 1
seed: 3
target: {engine: {model: tiny, memory: {kv_blocks: 128}}}
classes:
  default: {limits: {input: 256, output: 256, total: 512}}
phases: {warmup: 0s, window: 1s, drain: 1s}
load:
  - {class: default, arrival: {type: constant, rate: 1/s}, workload: {type: fixed, input: 30, output: 6}}
"""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}, "people": {"type": "integer", "maximum": 9}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Where?"}], "temperature": 1.0, "seed": 5}


@pytest.fixture
def client(benches, until):
    """Of the tiny random model, one worker; ended by Ctrl-C."""
    bench = benches()
    (bench.folder / "tiny.yaml").write_text(SCENARIO)
    bench.start("serve", "tiny.yaml", "--port", "0")
    until(lambda: bench.said("ready on"))
    (url,) = re.findall(r"ready on (http://127\.0\.0\.1:\d+)", bench.stderr.read_text())
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
    assert bench.process is not None
    bench.process.send_signal(signal.SIGINT)
    assert bench.wait() == 0, bench.stderr.read_text()


def test_choices_logprobs_and_schemas(client):
    """Three streamed choices are those of a whole answer, logprobs are probabilities, a random model meets a
    schema, and what cannot be met is refused by the client's own error class."""
    limits = {"max_tokens": 12, "n": 3, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**CHAT, **limits, logprobs=True, top_logprobs=2)
    streamed = {0: "", 1: "", 2: ""}
    reasons = {}
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**CHAT, **limits, stream=True, stream_options=options)
    for chunk in chunks:
        (choice,) = chunk.choices
        streamed[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason
    assert streamed == {choice.index: choice.message.content for choice in whole.choices}
    assert len(set(streamed.values())) == 3
    assert set(reasons.values()) == {"length"}
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 36

    for choice in whole.choices:
        assert len(choice.logprobs.content) == 12
        for token in choice.logprobs.content:
            likeliest = [each.logprob for each in token.top_logprobs]
            assert len(likeliest) == 2
            assert likeliest == sorted(likeliest, reverse=True)
            assert token.logprob <= likeliest[0] < 0
            assert sum(map(math.exp, likeliest)) <= 1

    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    place = client.chat.completions.create(**CHAT, n=2, max_tokens=120, response_format=form)
    for choice in place.choices:
        assert choice.finish_reason == "stop"
        said = json.loads(choice.message.content)
        assert said["city"] in ("Oslo", "Lima")
        assert said["people"] <= 9

    form["json_schema"]["schema"] = {"type": "string", "minLength": 5, "maxLength": 2}
    with pytest.raises(openai.BadRequestError, match="schema"):
        client.chat.completions.create(**CHAT, response_format=form)
