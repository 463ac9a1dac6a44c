"""Several choices, logprobs, schemas and adapters over HTTP."""

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.exchange import ApiRequest
from engine.api.service import Service
from engine.fleet.backend import Generated
from engine.request import Finish, Sampling
from tests.engine.api.fake import CONFIG, STAMPS, TOKENIZER, Bench, FakeFleet, FakeSink

HALF, QUARTER = math.log(0.5), math.log(0.25)
USAGE = {"include_usage": True}


@pytest.fixture
def bench():
    return Bench()


def texts(sink: FakeSink) -> dict[int, str]:
    """What a stream of completions says, by choice."""
    said: dict[int, str] = {}
    for event in sink.events[:-1]:
        for choice in event["choices"]:
            said[choice["index"]] = said.get(choice["index"], "") + choice["text"]
    return said


def ends(sink: FakeSink) -> list[tuple[int, str]]:
    """(choice, finish reason) in the order of the stream."""
    choices = [choice for event in sink.events[:-1] for choice in event["choices"]]
    return [(each["index"], each["finish_reason"]) for each in choices if each["finish_reason"]]


def test_a_whole_answer_with_choices(bench):
    """All in one body, in order, each with its reason; usage is their sum."""
    sink, _ = bench.chat(n=3, temperature=1)
    assert bench.fleet.asks[0].n == 3
    bench.fleet.say("cc", choice=2)
    bench.fleet.say("a", choice=0)
    bench.fleet.say("c", choice=2, finish=Finish.STOP)
    bench.fleet.say("bb", choice=1, finish=Finish.LENGTH)
    bench.fleet.say("a", choice=0)
    assert sink.status is None
    bench.fleet.end(Finish.LENGTH, 7)
    said = [
        (each["index"], each["message"]["content"], each["finish_reason"]) for each in sink.json["choices"]
    ]
    assert said == [(0, "aa", "length"), (1, "bb", "length"), (2, "ccc", "stop")]
    assert sink.json["usage"]["completion_tokens"] == 7


def test_streamed_choices(bench):
    """Each chunk names its choice, each choice its role once and its reason once, and usage comes once."""
    sink, _ = bench.chat(n=2, temperature=1, stream=True, stream_options=USAGE)
    bench.fleet.say("b", choice=1)
    bench.fleet.say("a", choice=0)
    bench.fleet.say("b", choice=1, finish=Finish.LENGTH)
    bench.fleet.say("a", choice=0)
    bench.fleet.end(Finish.STOP, 4)
    *chunks, usage, done = sink.events
    assert [(each["choices"][0]["index"], each["choices"][0]["delta"]) for each in chunks] == [
        (1, {"role": "assistant", "content": "b"}),
        (0, {"role": "assistant", "content": "a"}),
        (1, {"content": "b"}),
        (1, {}),
        (0, {"content": "a"}),
        (0, {}),
    ]
    reasons = [each["choices"][0]["finish_reason"] for each in chunks]
    assert reasons == [None, None, None, "length", None, "stop"]
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 4, "[DONE]")
    assert len({each["id"] for each in chunks}) == 1
    assert (bench.fleet.cancels, bench.fleet.choice_cancels) == ([], [])


def test_a_stop_string_ends_one_choice(bench):
    """It alone is ended, the others go on; the last one that meets one ends the request (E38)."""
    sink, _ = bench.complete(n=2, temperature=1, stop="END", stream=True, stream_options=USAGE)
    bench.fleet.say("oneE", choice=0)
    bench.fleet.say("two", choice=1)
    bench.fleet.say("ND and more", choice=0)
    assert ends(FakeSink(body=sink.body + b"data: x\n\n".replace(b"x", b"[DONE]"))) == [(0, "stop")]
    assert (bench.fleet.cancels, bench.fleet.choice_cancels) == ([], [(1, Finish.STOP, 0)])
    bench.fleet.say("computed for nobody", choice=0)
    bench.fleet.say(" threeEND", choice=1)
    assert bench.fleet.cancels == [(1, Finish.STOP)]
    bench.fleet.end(Finish.STOP, 40)
    assert texts(sink) == {0: "one", 1: "two three"}
    assert ends(sink) == [(0, "stop"), (1, "stop")]
    assert sink.events[-2]["usage"]["completion_tokens"] == len("one") + len("two three")


def test_the_last_that_goes_on_is_not_waited_for(bench):
    """One choice met its stop string, the worker has ended the other: nothing more is wanted."""
    sink, _ = bench.complete(n=2, temperature=1, stop="x")
    bench.fleet.say("ax", choice=0)
    bench.fleet.say("b", choice=1, finish=Finish.LENGTH)
    assert bench.fleet.cancels == [(1, Finish.STOP)]
    bench.fleet.end(Finish.CANCELLED, 9)
    said = [(each["text"], each["finish_reason"]) for each in sink.json["choices"]]
    assert said == [("a", "stop"), ("b", "length")]


def test_held_text_of_each_choice_is_flushed_at_its_end(bench):
    """What might have become a stop string belongs to the choice that holds it (C21 c)."""
    sink, _ = bench.complete(n=2, temperature=1, stop="own fox", stream=True)
    bench.fleet.say("The brown f", choice=0)
    bench.fleet.say("my own", choice=1)
    assert texts(FakeSink(body=sink.body + b"data: [DONE]\n\n")) == {0: "The br", 1: "my "}
    bench.fleet.say("", choice=0, finish=Finish.LENGTH)
    bench.fleet.end(Finish.LENGTH, 17)
    assert texts(sink) == {0: "The brown f", 1: "my own"}


def test_characters_of_choices_do_not_mix(bench):
    """Bytes of two choices that alternate join to whole characters of each (C21 a)."""
    sink, _ = bench.complete(n=2, temperature=1, stream=True)
    said = ("ď🌶", "한語")
    for pair in zip(*(TOKENIZER.encode(text) for text in said), strict=True):
        for choice, token in enumerate(pair):
            bench.fleet.listeners[0](Generated((token,), choice))
    bench.fleet.end(Finish.LENGTH, 12)
    assert texts(sink) == dict(enumerate(said))
    assert "\ufffd" not in sink.body.decode()


@given(
    st.lists(st.text("abcď", max_size=12), min_size=2, max_size=3),
    st.lists(st.text("abcď", min_size=1, max_size=3), max_size=2),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=30),
)
def test_each_choice_reads_as_if_alone(said, stops, turns):
    """However the workers' batches alternate, with whatever stops (C21 d): text, reason and usage."""
    alone = []
    for text in said:
        single = Bench()
        sink, _ = single.complete(stop=stops)
        single.fleet.say(text)
        single.fleet.end(Finish.LENGTH, len(TOKENIZER.encode(text)))
        alone.append((sink.json["choices"][0], sink.json["usage"]["completion_tokens"]))
    bench = Bench()
    sink, _ = bench.complete(n=len(said), temperature=1, stop=stops)
    left = [TOKENIZER.encode(text) for text in said]
    for choice, count in [*turns, *((choice, 100) for choice in range(len(said)))]:
        if choice < len(said):
            ids, left[choice] = left[choice][:count], left[choice][count:]
            bench.fleet.listeners[0](Generated(tuple(ids), choice))
    bench.fleet.end(Finish.LENGTH, 1)
    for choice, (expected, _) in zip(sink.json["choices"], alone, strict=True):
        assert {**choice, "index": 0} == expected
    assert sink.json["usage"]["completion_tokens"] == sum(count for _, count in alone)


def test_an_error_ends_all_choices_once(bench):
    """One error event, also when a choice was complete."""
    sink, _ = bench.complete(n=2, temperature=1, stream=True)
    bench.fleet.say("a", choice=0, finish=Finish.STOP)
    bench.fleet.end(Finish.ERROR, code="worker_lost", message="gone", retriable=True)
    assert sink.events[-1]["error"]["code"] == "worker_lost"
    assert [each for each in sink.events if "error" in each] == [sink.events[-1]]
    assert sink.ended


def test_a_cancel_drops_what_every_choice_holds(bench):
    """Nothing more is sent (C21 e)."""
    sink, abort = bench.complete(n=2, temperature=1, stream=True, stop="abc")
    bench.fleet.say("xab", choice=0)
    bench.fleet.say("ya", choice=1)
    written = sink.body
    abort()
    bench.fleet.say("z", choice=1)
    bench.fleet.end(Finish.CANCELLED)
    assert sink.body == written
    assert bench.fleet.cancels == [(1, Finish.CANCELLED)]


def test_logprobs_of_a_chat(bench):
    """Token, value, bytes and the likeliest, for each token that is shown; parts of characters as bytes."""
    sink, _ = bench.chat(logprobs=True, top_logprobs=1, stop="X")
    bench.fleet.say("aď", top=1)
    bench.fleet.say("bX", top=1)
    bench.fleet.end(Finish.STOP, 5)
    content = sink.json["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == ["a", "bytes:\\xc4", "bytes:\\x8f", "b"]
    assert content[0] == {
        "token": "a",
        "logprob": HALF,
        "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": QUARTER, "bytes": [98]}],
    }


def test_logprobs_of_a_completion(bench):
    """Four lists of one length; the drawn token is among the top ones; offsets count characters."""
    sink, _ = bench.complete(logprobs=1)
    bench.fleet.say("aďb", top=1)
    bench.fleet.end(Finish.LENGTH, 4)
    logprobs = sink.json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc4", "bytes:\\x8f", "b"]
    assert logprobs["token_logprobs"] == [HALF] * 4
    assert logprobs["top_logprobs"][0] == {"b": QUARTER, "a": HALF}
    assert logprobs["text_offset"] == [0, 1, 1, 2]


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_streamed_logprobs_come_with_their_text(bench, path):
    """Each choice's chunks hold the logprobs of their own tokens, none twice, none lost."""
    sink, _ = getattr(bench, path)(n=2, temperature=1, stream=True, logprobs=True if path == "chat" else 0)
    for index, letter in enumerate("héllo"):
        bench.fleet.say(letter, choice=index % 2, top=0)
    bench.fleet.end(Finish.LENGTH, 6)
    told: dict[int, list[str]] = {0: [], 1: []}
    for event in sink.events[:-1]:
        (choice,) = event["choices"]
        if choice["logprobs"] is not None:
            if path == "chat":
                names = [each["token"] for each in choice["logprobs"]["content"]]
            else:
                names = choice["logprobs"]["tokens"]
            told[choice["index"]] += names
    assert told == {0: ["h", "l", "o"], 1: ["bytes:\\xc3", "bytes:\\xa9", "l"]}


def test_logprobs_only_where_they_were_asked_for_and_made(bench):
    """A model that makes none says null; one that makes them unasked stays silent."""
    asked, _ = bench.complete(logprobs=1)
    bench.fleet.say("a")
    bench.fleet.end(Finish.LENGTH, 1)
    unasked, _ = bench.complete()
    bench.fleet.say("a", request=2, top=1)
    bench.fleet.end(Finish.LENGTH, 1, request=2)
    assert [sink.json["choices"][0]["logprobs"] for sink in (asked, unasked)] == [None, None]


def test_what_is_asked_reaches_the_gateway(bench):
    """Sampling as parsed with its seed, choices and retention; an adapter by its name."""
    bench.fleet.loras = ("poet",)
    bench.complete(
        model="poet", n=2, temperature=1, seed=4, top_p=0.5, stop_token_ids=[7], prompt_cache_retention="1h"
    )
    (ask,) = bench.fleet.asks
    assert (ask.n, ask.adapter, ask.retention) == (2, "poet", "1h")
    assert ask.sampling == Sampling(temperature=1.0, seed=4, top_p=0.5, stop_ids=(7,))
    bench.complete()
    assert bench.fleet.asks[1].adapter is None


def test_adapters_are_models(bench):
    """Listed with the model that they belong to; any other name is unknown."""
    bench.fleet.loras = ("poet",)
    models = bench.get("/v1/models").json["data"]
    assert [(model["id"], model["parent"]) for model in models] == [("tiny", None), ("poet", "tiny")]
    sink, _ = bench.complete(model="painter")
    assert (sink.status, sink.json["error"]["code"]) == (404, "model_not_found")
    assert "'tiny', 'poet'" in sink.json["error"]["message"]


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_a_schema_is_compiled_off_the_loop_once():
    """The first request with it waits on the thread, the next is submitted at once; a bad one is a 400."""
    pytest.importorskip("llguidance")

    async def main():
        fleet = FakeFleet()
        with ThreadPoolExecutor(1) as executor:
            service = Service(fleet, TOKENIZER, CONFIG, STAMPS, executor)

            def post(schema) -> FakeSink:
                sink = FakeSink()
                body = json.dumps({"model": "tiny", "prompt": "hi", "guided_json": schema}).encode()
                service.handle(ApiRequest("POST", "/v1/completions", {}, body), sink)
                return sink

            post(PERSON)
            assert fleet.asks == []
            await service.settled()
            assert len(fleet.asks) == 1
            post(PERSON)
            assert len(fleet.asks) == 2
            assert json.loads(fleet.asks[0].sampling.schema or "") == PERSON
            bad = post({"type": "nothing"})
            await service.settled()
            assert (bad.status, bad.json["error"]["code"]) == (400, "invalid_schema")
            assert service.generating == 2

    asyncio.run(main())
