"""The HTTP layer over real gateway and workers, in virtual time: what a client sees of several choices."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.api.exchange import ApiRequest
from engine.api.generation import Stamps
from engine.api.service import Service
from engine.config import CacheConfig
from engine.model.words import WordsTokenizer
from loadgen.clock import run_virtual
from tests.engine.api.fake import FakeSink
from tests.engine.fleet.world import VirtualFleet, config

BODY = {
    "model": "simulated",
    "prompt": "one two three four five",
    "temperature": 1,
    "seed": 6,
    "max_tokens": 12,
}


def answered(*bodies: dict[str, Any], **settings: Any) -> tuple[list[FakeSink], list[dict[str, Any]]]:
    """What a fleet of one worker answers to completions sent one after the other, and its truth."""

    async def main(clock):
        of = config(workers=1, model="simulated", **settings)
        sinks = [FakeSink() for _ in bodies]
        async with VirtualFleet(of, clock) as world:
            service = Service(world.fleet, WordsTokenizer(), of, Stamps(clock, lambda: 0))
            for body, sink in zip(bodies, sinks, strict=True):
                data = json.dumps({**BODY, **body}).encode()
                service.handle(ApiRequest("POST", "/v1/completions", {}, data), sink)
                while not sink.ended:
                    await asyncio.sleep(0.05)
            await world.check_at_rest()
            return sinks, await world.fleet.truth()

    return run_virtual(main)


def test_choices_streamed_and_whole_are_the_same():
    """The same seed gives the same choices, whether streamed or whole; a choice's text is as long alone."""
    (whole, streamed, first), truth = answered({"n": 3}, {"n": 3, "stream": True}, {})
    texts = [choice["text"] for choice in whole.json["choices"]]
    said = ["", "", ""]
    for event in streamed.events[:-1]:
        for choice in event["choices"]:
            said[choice["index"]] += choice["text"]
    assert said == texts
    assert len(set(texts)) == 3
    assert first.json["choices"][0]["text"] == texts[0]
    assert whole.json["usage"]["completion_tokens"] == truth[0]["generated"] == 36


def test_a_stop_string_of_one_choice_saves_its_tokens():
    """The others say all they would have said, usage is cut with the text, and the worker computes less."""
    (plain,), (row,) = answered({"n": 3})
    texts = [choice["text"] for choice in plain.json["choices"]]
    stop = texts[1].split()[3]
    assert not any(stop in text for text in (texts[0], texts[2]))
    (cut,), (less,) = answered({"n": 3, "stop": stop})
    choices = cut.json["choices"]
    assert [choice["text"] for choice in choices] == [texts[0], texts[1].split(stop)[0], texts[2]]
    assert [choice["finish_reason"] for choice in choices] == ["length", "stop", "length"]
    counted = cut.json["usage"]["completion_tokens"]
    assert counted == 12 + 4 + 12, "the fourth token gave the blank before the stop string"
    assert counted <= less["generated"] < row["generated"]


def test_a_stop_id_ends_its_choice():
    """It is the last token of the choice that draws it."""
    (plain,), _ = answered({"n": 2, "return_token_ids": True})
    ids = [choice["token_ids"] for choice in plain.json["choices"]]
    assert ids[1][4] not in ids[0]
    (cut,), _ = answered({"n": 2, "return_token_ids": True, "stop_token_ids": [ids[1][4]]})
    choices = cut.json["choices"]
    assert [choice["token_ids"] for choice in choices] == [ids[0], ids[1][:5]]
    assert [choice["finish_reason"] for choice in choices] == ["length", "stop"]
    assert cut.json["usage"]["completion_tokens"] == 12 + 5


LONG = {"prompt": " ".join(f"word{i}" for i in range(40))}


@pytest.mark.parametrize("stream", [False, True])
def test_reasons_of_misses_are_shown_only_where_they_may_be(stream):
    """They may tell of others' requests (E18): off by default. On, an answer has those of its truth row."""
    body = LONG | {"stream": stream, "stream_options": {"include_usage": True}}
    for exposed in (False, True):
        (first, again), truth = answered(body, body, expose_miss_reasons=exposed)
        for sink, row in zip((first, again), truth, strict=True):
            account = sink.events[-2] if stream else sink.json
            reasons = {miss["reason"] for miss in row["misses"]}
            assert account["headrace"].get("misses") == (row["misses"] if exposed else None)
            assert exposed or not any(reason.encode() in sink.body for reason in reasons)
    assert truth[0]["misses"][0]["reason"] == "never_computed"
    assert truth[1]["misses"] != truth[0]["misses"], "the second one hit the first one's blocks"


@pytest.mark.parametrize(
    ("ttl", "asked", "holds"),
    [(None, None, None), (60.0, None, 60.0), (60.0, "5m", 300.0), (None, "5m", 300.0)],
)
def test_an_answer_tells_the_life_of_its_blocks(ttl, asked, holds):
    """What it asked for, else ``cache.ttl``, which holds for all (E5, E15)."""
    cache = CacheConfig(ttl=ttl, retention={"5m": 300.0})
    (sink,), _ = answered({} if asked is None else {"prompt_cache_retention": asked}, cache=cache)
    assert sink.json["headrace"]["retention"] == holds


def test_refusals_leave_nothing_behind():
    """More choices than the pool holds, a schema that this model cannot meet, an unknown life and model: each
    a 4xx with numbers or names, and the next request is served."""
    refused = [
        ({"n": 128, "max_tokens": 4000}, 400, ""),
        ({"response_format": {"type": "json_object"}}, 400, "vocabulary of 2147483648"),
        ({"prompt_cache_retention": "for ever"}, 400, "for ever"),
        ({"model": "painter"}, 404, "painter"),
    ]
    sinks, truth = answered(*(body for body, *_ in refused), {})
    for sink, (_, status, said) in zip(sinks, refused, strict=False):
        assert sink.status == status
        assert said in sink.json["error"]["message"]
    assert sinks[-1].status == 200
    assert len(truth) == 1
