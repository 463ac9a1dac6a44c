import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.api.exchange import ApiRequest
from engine.api.service import Service
from engine.fleet.backend import Generated, Rejected
from engine.request import Finish
from loadgen.clock import run_virtual
from tests.engine.api.fake import CONFIG, STAMPS, TOKENIZER, Bench, FakeFleet, FakeSink

TIMES = {"received": 0, "first_scheduled": 1_000_000_000, "prefill_done": 1_500_000_000, "finished": None}


@pytest.fixture
def bench():
    return Bench()


def test_a_whole_chat_answer(bench):
    """One JSON body with text, finish reason, usage with cached tokens, and the headrace object."""
    sink, _ = bench.chat(max_tokens=4)
    bench.fleet.say("hey")
    assert sink.status is None
    hits = {"device": 16, "host": 0, "disk": 32}
    bench.fleet.end(
        Finish.LENGTH, 3, worker=1, epoch=2, config_id="c", created_cache=16, times=TIMES, hits=hits
    )
    assert (sink.status, sink.ended) == (200, True)
    body = sink.json
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hey"}
    assert body["choices"][0]["finish_reason"] == "length"
    prompt = len(bench.fleet.asks[0].tokens)
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "total_tokens": prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 48, "created_cache_tokens": 16},
    }
    assert (body["headrace"]["worker"], body["headrace"]["config_id"]) == (1, "c")
    assert body["headrace"]["hits"] == hits
    assert body["headrace"]["out_max"] == 4
    assert body["headrace"]["phases"] == {
        "queue_seconds": 1.0,
        "prefill_seconds": 0.5,
        "decode_seconds": None,
    }
    assert bench.fleet.writes == [1]


def test_a_streamed_chat(bench):
    """Role with the first text, deltas, finish, usage without choices, [DONE], then the end."""
    sink, _ = bench.chat(stream=True, stream_options={"include_usage": True})
    assert sink.status is None, "nothing is sent before the first token"
    bench.fleet.say("he")
    assert sink.status == 200
    assert sink.headers["Content-Type"].startswith("text/event-stream")
    bench.fleet.say("y")
    bench.fleet.end(Finish.STOP, 3)
    first, second, finish, usage, done = sink.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "he"}
    assert second["choices"][0]["delta"] == {"content": "y"}
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert "headrace" in usage
    assert done == "[DONE]"
    assert sink.ended
    assert "usage" not in finish
    assert "token_ids" not in first["choices"][0]


def test_a_stream_without_usage(bench):
    """Usage in a stream only if it was asked for."""
    sink, _ = bench.complete(stream=True)
    bench.fleet.say("a")
    bench.fleet.end(Finish.STOP, 1)
    assert [event if event == "[DONE]" else event["choices"][0]["text"] for event in sink.events] == [
        "a",
        "",
        "[DONE]",
    ]


def test_token_ids_come_with_their_text(bench):
    """Ids in the choice, each with the text it completes; they add up to usage."""
    sink, _ = bench.complete(stream=True, return_token_ids=True)
    han = TOKENIZER.encode("한")
    for token in han:
        bench.fleet.listeners[0](Generated((token,)))
    bench.fleet.end(Finish.LENGTH, 3)
    chunk = sink.events[0]["choices"][0]
    assert (chunk["text"], chunk["token_ids"]) == ("한", han)


def test_a_stop_string_ends_the_request(bench):
    """The gateway is told, later tokens are ignored, usage is cut with the text."""
    sink, _ = bench.complete(stop="END", stream=True, stream_options={"include_usage": True})
    bench.fleet.say("one E")
    bench.fleet.say("ND two")
    assert bench.fleet.cancels == [(1, Finish.STOP)]
    bench.fleet.say("three")
    bench.fleet.end(Finish.STOP, 20)
    *chunks, finish, usage, _ = sink.events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one "
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == 4


def test_a_client_that_goes_away_cancels(bench):
    """Abort cancels once, and nothing is written to the sink afterwards."""
    sink, abort = bench.complete(stream=True, stop="abc")
    bench.fleet.say("xab")
    written = sink.body
    abort()
    abort()
    bench.fleet.say("z")
    bench.fleet.end(Finish.CANCELLED)
    assert bench.fleet.cancels == [(1, Finish.CANCELLED)]
    assert sink.body == written
    assert not sink.ended


def test_abort_after_the_end_is_nothing(bench):
    """Closing the connection of a finished exchange cancels nobody."""
    _, abort = bench.complete()
    bench.fleet.end(Finish.STOP, 0)
    abort()
    assert bench.fleet.cancels == []


def test_a_loss_before_the_first_byte_is_a_status(bench):
    """Nothing was sent yet, so the client gets an HTTP error that it may retry."""
    sink, _ = bench.complete(stream=True)
    bench.fleet.end(Finish.ERROR, code="worker_lost", message="gone", retriable=True)
    assert sink.status == 503
    assert sink.json["error"] == {
        "message": "gone",
        "type": "server_error",
        "param": None,
        "code": "worker_lost",
        "retriable": True,
    }


@pytest.mark.parametrize(
    ("code", "wait"), [("adapter_unavailable", "2"), ("no_worker", "2"), ("worker_lost", None)]
)
def test_where_nobody_could_serve_it_the_client_is_told_when_to_come_back(bench, code, wait):
    """A 503 that another try may mend: with Retry-After, unless some other worker is there at once."""
    sink, _ = bench.complete()
    bench.fleet.end(Finish.ERROR, code=code, message="not now", retriable=True)
    assert (sink.status, sink.json["error"]["retriable"]) == (503, True)
    assert sink.headers.get("Retry-After") == wait


def test_a_loss_after_the_first_byte_is_one_error_event(bench):
    """One error event, then the close: no finish reason, no [DONE] (F41)."""
    sink, _ = bench.chat(stream=True)
    bench.fleet.say("a")
    bench.fleet.end(Finish.ERROR, code="worker_lost", message="gone", retriable=True)
    text, error = sink.events
    assert text["choices"][0]["finish_reason"] is None
    assert error["error"]["code"] == "worker_lost"
    assert sink.ended


@pytest.mark.parametrize("stream", [False, True])
def test_expiry_in_the_queue_is_504(bench, stream):
    """E31: deadline_exceeded with status 504 while nothing was generated."""
    sink, _ = bench.complete(stream=stream)
    bench.fleet.end(Finish.EXPIRED)
    assert sink.status == 504
    assert sink.json["error"]["code"] == "deadline_exceeded"


def test_expiry_while_streaming_keeps_the_partial_text(bench):
    """E31: partial text, then the error event."""
    sink, _ = bench.complete(stream=True)
    bench.fleet.say("partial")
    bench.fleet.end(Finish.EXPIRED)
    text, error = sink.events
    assert text["choices"][0]["text"] == "partial"
    assert error["error"]["code"] == "deadline_exceeded"


def test_a_refusal_keeps_its_status_and_retry_after(bench):
    """What the gateway refuses becomes its status, code and Retry-After header."""
    bench.fleet.rejection = Rejected(429, "queue_full", "200 requests wait", 7)
    sink, _ = bench.complete()
    assert (sink.status, sink.headers["Retry-After"]) == (429, "7")
    assert sink.json["error"]["code"] == "queue_full"
    assert sink.json["error"]["type"] == "rate_limit_error"
    assert sink.json["error"]["retriable"] is True
    bench.fleet.rejection = Rejected(400, "context_length_exceeded", "it does not fit")
    assert "retriable" not in bench.complete()[0].json["error"]


def test_identity_comes_from_headers(bench):
    """Class, tenant, session, id and deadline travel to the gateway; the id comes back."""
    sink, _ = bench.post(
        "/v1/completions",
        {"model": "tiny", "prompt": [1, 2], "max_tokens": 3, "seed": 5, "temperature": 1, "cache_salt": "s"},
        x_headrace_class="chat",
        x_headrace_tenant="acme",
        x_headrace_session="s1",
        x_request_id="r1",
        x_deadline_ms="1500",
    )
    (ask,) = bench.fleet.asks
    assert (ask.class_, ask.tenant, ask.session, ask.client_id) == ("chat", "acme", "s1", "r1")
    assert (ask.deadline_s, ask.max_tokens, ask.received, ask.cache_salt) == (1.5, 3, 7, "s")
    assert (ask.sampling.seed, ask.sampling.temperature) == (5, 1)
    bench.fleet.end(Finish.STOP)
    assert sink.headers["X-Request-Id"] == "r1"


def test_requests_without_a_seed_differ_and_repeat(bench):
    """Two requests draw differently, two runs of the engine alike."""
    for _ in range(2):
        bench.complete(temperature=1)
    first, second = (ask.sampling.seed for ask in bench.fleet.asks)
    assert first != second
    again = Bench()
    again.complete(temperature=1)
    assert again.fleet.asks[0].sampling.seed == first


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/completions", {"model": "other", "prompt": "x"}, 404, "model_not_found"),
        ("/v1/completions", {"model": "tiny", "prompt": [259]}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": "\ud800"}, 400, "invalid_value"),
        ("/v1/completions", {"model": "\ud800", "prompt": "x"}, 404, "model_not_found"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "echo": True}, 400, "unsupported_parameter"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "stop_token_ids": [259]}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "logit_bias": {"259": 1}}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "cache_salt": "\ud800"}, 400, "invalid_value"),
        (
            "/v1/completions",
            {"model": "tiny", "prompt": "x", "guided_json": {"type": "strin"}},
            400,
            "invalid_schema",
        ),
        ("/v1/chat/completions", {"model": "tiny", "messages": []}, 400, "invalid_value"),
        (
            "/v1/chat/completions",
            {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "invalid_messages",
        ),
        ("/v2/completions", {}, 404, "unknown_path"),
        ("/live", {}, 405, "method_not_allowed"),
    ],
)
def test_errors_have_openais_shape(bench, path, body, status, code):
    """Every refusal is JSON with message, type, param and code."""
    sink, _ = bench.post(path, body)
    assert (sink.status, sink.json["error"]["code"]) == (status, code)
    assert set(sink.json["error"]) == {"message", "type", "param", "code"}
    assert sink.ended
    assert bench.fleet.asks == []


@pytest.mark.parametrize("deadline", ["0", "-1", "soon", "nan"])
def test_a_deadline_that_is_none_is_refused(bench, deadline):
    """X-Deadline-Ms must be a positive number."""
    sink, _ = bench.post("/v1/completions", {"model": "tiny", "prompt": "x"}, x_deadline_ms=deadline)
    assert sink.status == 400


def test_a_bug_below_ends_one_request(bench, caplog):
    """An unexpected exception is a 500 for this request, and logged (E2)."""
    bench.fleet.rejection = RuntimeError("bug")  # type: ignore[assignment]
    sink, _ = bench.complete()
    assert (sink.status, sink.ended) == (500, True)
    assert "bug" in caplog.text


def test_health_models_and_metrics(bench):
    """The small routes."""
    assert bench.get("/live").status == 200
    assert bench.get("/ready").json["ready"] is True
    assert bench.get("/v1/models").json["data"][0]["id"] == "tiny"
    assert bench.get("/metrics").body == b"# nothing\n"
    bench.fleet.reason = ("no worker is loaded yet", 3)
    sink = bench.get("/ready")
    assert (sink.status, sink.headers["Retry-After"]) == (503, "3")
    assert bench.get("/live").status == 200


def test_tokenize_locates_messages(bench):
    """Ids, digests, and where each message's content lies in the ids."""
    messages = [{"role": "system", "content": "Zř"}, {"role": "user", "content": "  Zř and more "}]
    sink, _ = bench.post("/tokenize", {"messages": messages})
    body = sink.json
    assert body["count"] == len(body["tokens"])
    assert body["digests"] == [bytes([body["count"]]).hex() * 16]
    assert [component["path"] for component in body["components"]] == ["messages[0]", "messages[1]"]
    for component, message in zip(body["components"], messages, strict=True):
        ids = body["tokens"][component["start"] : component["start"] + component["tokens"]]
        assert TOKENIZER.decode(ids) == message["content"]
        assert component["role"] == message["role"]
    plain, _ = bench.post("/tokenize", {"prompt": "abc"})
    assert plain.json["tokens"] == [97, 98, 99]
    assert plain.json["components"] == []


def test_virtual_time_charges_before_submit():
    """In virtual time a request reaches the gateway after g0 + g1*P (E40)."""

    async def main(clock):
        fleet = FakeFleet()
        service = Service(fleet, TOKENIZER, CONFIG, STAMPS, charge=lambda tokens: 0.1 + 0.01 * tokens)
        body = json.dumps({"model": "tiny", "prompt": "abc"}).encode()
        service.handle(ApiRequest("POST", "/v1/completions", {}, body), FakeSink())
        abort = service.handle(ApiRequest("POST", "/v1/completions", {}, body), FakeSink())
        abort()
        await asyncio.sleep(0.129)
        assert fleet.asks == []
        await asyncio.sleep(0.002)
        assert len(fleet.asks) == 1, "the aborted one never arrives"
        assert fleet.cancels == []

    run_virtual(main)


def test_long_prompts_are_tokenised_on_a_thread():
    """A long body is answered like a short one, good or bad."""

    async def main():
        fleet = FakeFleet()
        with ThreadPoolExecutor(1) as executor:
            service = Service(fleet, TOKENIZER, CONFIG, STAMPS, executor)
            good, bad = FakeSink(), FakeSink()
            for sink, prompt in ((good, "x" * 20_000), (bad, "x" * 20_000 + "\ud800")):
                body = json.dumps({"model": "tiny", "prompt": prompt}).encode()
                service.handle(ApiRequest("POST", "/v1/completions", {}, body), sink)
            assert fleet.asks == []
            await service.settled()
            assert len(fleet.asks[0].tokens) == 20_000
            assert bad.status == 400

    asyncio.run(main())


def test_long_texts_are_counted_on_a_thread():
    """/tokenize of a long text keeps no stream waiting: the same answer, good or bad, a little later."""

    async def main():
        with ThreadPoolExecutor(1) as executor:
            fleet = FakeFleet()
            fleet.digests = lambda tokens, tenant: []
            service = Service(fleet, TOKENIZER, CONFIG, STAMPS, executor)
            good, bad = FakeSink(), FakeSink()
            for sink, prompt in ((good, "x" * 20_000), (bad, "x" * 20_000 + "\ud800")):
                data = json.dumps({"prompt": prompt}).encode()
                service.handle(ApiRequest("POST", "/tokenize", {}, data), sink)
            assert (good.status, bad.status) == (None, None)
            await service.settled()
            assert (good.status, good.json["count"]) == (200, 20_000)
            assert (bad.status, bad.json["error"]["param"]) == (400, "prompt")

    asyncio.run(main())


def test_draining_refuses_the_new_and_finishes_the_old(bench):
    """Not ready at once, 503 with Retry-After for generations, the running one goes on (E53)."""
    running, _ = bench.complete(stream=True)
    bench.fleet.say("a")
    assert bench.service.generating == 1
    bench.service.draining = True
    refused, _ = bench.complete()
    assert (refused.status, refused.json["error"]["code"]) == (503, "draining")
    assert "Retry-After" in refused.headers
    assert bench.get("/ready").status == 503
    assert bench.get("/live").status == 200
    bench.fleet.end(Finish.STOP, 1)
    assert running.events[-1] == "[DONE]"
    assert bench.service.generating == 0


@pytest.mark.parametrize("body", [{"prompt": [1 << 31]}, {"prompt": "\ud800"}])
def test_a_prompt_that_cannot_be_tokenised_leaves_no_generation(bench, body):
    """Refused before it was submitted, it is over: a drain does not wait for it (E53)."""
    sink, _ = bench.complete(**body)
    assert sink.status == 400
    assert bench.service.generating == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_body_nested_too_deeply_is_the_clients_mistake(bench, path):
    """However deep the JSON, the answer is a 400 and the engine lives."""
    sink, _ = bench.post(path, b'{"prompt": ' + b"[" * 100_000)
    assert (sink.status, sink.ended) == (400, True)


@pytest.mark.parametrize(
    "name", ["x_request_id", "x_headrace_class", "x_headrace_tenant", "x_headrace_session"]
)
def test_a_header_that_is_no_utf8_is_refused(bench, name):
    """A server hands on such bytes as lone surrogates, which no message to a worker could carry."""
    sink, _ = bench.post("/v1/completions", {"model": "tiny", "prompt": "hi"}, **{name: "a\udcff"})
    assert sink.status == 400
    assert name.replace("_", "-") in sink.json["error"]["message"]
    assert "X-Request-Id" not in sink.headers
    assert bench.fleet.asks == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_be_written_is_ended_with_an_error(bench, stream):
    """A tokenizer that fails on an output id ends that request at both ends: nobody hangs (E2)."""
    sink, _ = bench.complete(stream=stream)
    bench.fleet.listeners[0](Generated((-1,)))
    assert sink.ended
    assert sink.json["error"]["code"] == "internal_error"
    assert bench.fleet.cancels == [(1, Finish.CANCELLED)]
    assert bench.service.generating == 0
    bench.fleet.end(Finish.CANCELLED)


def test_a_full_queue_refuses_before_tokenising(monkeypatch):
    """What is refused by count costs no tokenizing, long prompts included (E32, case C14)."""
    bench = Bench()
    bench.fleet.full = Rejected(429, "queue_full", "10 requests wait, the limit is 10", 3)
    monkeypatch.setattr("engine.api.service.tokenise", lambda *_: pytest.fail("tokenised"))
    sink, _ = bench.complete(prompt="x" * 100_000)
    assert (sink.status, sink.headers["Retry-After"]) == (429, "3")
    assert (bench.fleet.asks, bench.service.generating) == ([], 0)
