"""The reference server's script: times, failures and bytes, without a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.http1 import ResponseParser
from loadgen.reference.answers import Answer, Answers, End
from loadgen.reference.lateness import Lateness
from loadgen.reference.requests import Asked, BadRequest, RequestReader, asked
from loadgen.reference.script import Failure, FailureKind, Framing, Jitter, Script, Stall
from loadgen.reference.timetable import Timetable
from loadgen.reference.wire import WIRES, text_of
from loadgen.targets import TARGETS
from loadgen.timeline import Timeline
from results.record import Outcome, Record

MS = 1_000_000
CHAT = "/v1/chat/completions"
DIALECTS = {CHAT: "openai_chat", "/v1/completions": "openai_completions"}

FRAMINGS = st.builds(
    Framing,
    transfer=st.sampled_from(["chunked", "length", "close"]),
    line_end=st.sampled_from(["lf", "crlf", "cr"]),
    events_per_write=st.integers(1, 7),
    cuts=st.lists(st.integers(-60, 60), max_size=3).map(tuple),
    bytewise=st.booleans(),
    comments=st.booleans(),
    multiline=st.booleans(),
    space=st.booleans(),
    bom=st.booleans(),
    head=st.sampled_from(["at once", "with the first"]),
)


def answer_of(script: Script, n: int | None = 5, path: str = CHAT, stream: bool = True) -> Answer:
    return Answers(script).answer(path, Asked(n, stream, include_usage=True), 7)


def read(answer: Answer, path: str = CHAT) -> tuple[Record, str]:
    """What our client makes of an answer whose k-th piece is read at k ms; and its text."""
    timeline, parser = Timeline(TARGETS[DIALECTS[path]](model="m")), ResponseParser()  # type: ignore[call-arg]
    t = 0
    timeline.connected(t, False)
    timeline.sent(t)
    for k, data in enumerate(answer.pieces):
        t = k * MS
        piece = parser.feed(data)
        if piece.head is not None:
            timeline.headers(t, piece.head.status, piece.head.headers)
        if piece.body:
            timeline.data(t, piece.body)
        if piece.complete:
            timeline.closed(t, "complete", "")
    if timeline.ending is None:
        timeline.closed(t, "complete" if parser.eof() else "eof", "")
    record = Record(0, "c", "window", Outcome.UNKNOWN, start=0)
    exchange = timeline.close(record, 0)
    return record, exchange.text


def written_at(answer: Answer) -> list[int]:
    """The piece, as ms, that completes each token event by the server's own account."""
    return [k * MS for k, count in enumerate(answer.tokens) for _ in range(count)]


@given(FRAMINGS, st.integers(1, 9), st.booleans(), st.sampled_from([*DIALECTS]))
def test_any_framing_says_the_same_and_the_server_knows_which_write_completes_which_token(
    framing: Framing, n: int, prelude: bool, path: str
) -> None:
    """Our client's time of each token is that of the piece which the server counts as its write."""
    answer = answer_of(Script(framing=framing, prelude=prelude, cached_tokens=3), n, path)
    record, text = read(answer, path)
    assert text == text_of(n)
    assert record.outcome is Outcome.COMPLETED
    assert (record.n_out, record.n_out_source, record.finish) == (n, "usage", "length")
    assert (record.prompt_total, record.cache_read) == (7, 3)
    assert record.first_token is not None
    assert [record.first_token + us * 1000 for us in record.event_us] == written_at(answer)


@given(FRAMINGS, st.sampled_from([*WIRES]))
def test_every_api_writes_each_token_once_at_its_time(framing: Framing, path: str) -> None:
    """Whatever the framing, n token events come at the times of the script or of their write's last."""
    script = Script(ttft=0.05, itl=0.01, framing=framing)
    answer = answer_of(script, 6, path)
    assert sum(answer.tokens) == 6
    assert list(answer.offsets) == sorted(answer.offsets)
    due = [50 * MS + k * 10 * MS for k in range(6)]
    step = framing.events_per_write
    last_of = [due[min(k - k % step + step - 1, 5)] for k in range(6)]
    times = [at for at, count in zip(answer.offsets, answer.tokens, strict=True) for _ in range(count)]
    assert times == last_of


@pytest.mark.parametrize("path", [*WIRES])
def test_a_whole_answer_comes_when_its_last_token_would(path: str) -> None:
    """Without ``stream`` there is one write, of valid JSON."""
    answer = answer_of(Script(), 5, path, stream=False)
    assert answer.offsets == (90 * MS,)
    body = ResponseParser().feed(answer.pieces[0])
    assert body.complete
    assert text_of(5) in json.dumps(json.loads(body.body))


def test_length_is_the_requests_unless_the_script_is_shorter() -> None:
    """tokens None follows the request, else 50; a number is never more than the request allows."""
    assert [Script().length(n) for n in (None, 7)] == [50, 7]
    assert [Script(tokens=20).length(n) for n in (None, 7, 30)] == [20, 7, 20]


def test_usage_is_given_when_asked_or_as_scripted() -> None:
    """``asked`` follows include_usage; never and always do what they say."""
    for usage, include, expected in [
        ("asked", True, True),
        ("asked", False, False),
        ("always", False, True),
        ("never", True, False),
    ]:
        script = Script(usage=usage)  # type: ignore[arg-type]
        answer = Answers(script).answer(CHAT, Asked(3, True, include), 7)
        assert (b'"usage"' in b"".join(answer.pieces)) is expected


def test_missing_ends_are_seen_as_such() -> None:
    """Without a finish reason or [DONE] our client completes with the warning for each."""
    for script, warning in [
        (Script(finish=False), "missing_finish_reason"),
        (Script(done=False), "missing_done"),
    ]:
        record, _ = read(answer_of(script))
        assert record.outcome is Outcome.COMPLETED
        assert warning in record.warnings


@pytest.mark.parametrize("after", [0, 2, 5, 9])
@pytest.mark.parametrize(
    ("kind", "outcome", "end"),
    [
        ("in_band", Outcome.IN_BAND_ERROR, End.FAILED),
        ("truncate", Outcome.TRUNCATED, End.TRUNCATED),
        ("reset", Outcome.TRUNCATED, End.RESET),
        ("silence", Outcome.TRUNCATED, End.SILENT),
    ],
)
@pytest.mark.parametrize("transfer", ["chunked", "length", "close"])
def test_a_failure_takes_the_place_of_the_token_after(
    kind: FailureKind, outcome: Outcome, end: End, after: int, transfer: str
) -> None:
    """The tokens before it come as ever; it comes when the next one was due."""
    framing = Framing(transfer=transfer)  # type: ignore[arg-type]
    script = Script(failures=(Failure(kind, 1.0, after=after),), framing=framing)
    answer = answer_of(script, 5)
    record, text = read(answer)
    assert text == text_of(min(after, 5))
    assert record.outcome is outcome
    assert answer.end is end
    assert answer.offsets[-1] == 50 * MS + min(after, 4) * 10 * MS


@pytest.mark.parametrize(
    "wrong",
    [{"prompt_tokens": -1}, {"cached_tokens": -1}, {"seed": -1}, {"cached_tokens": 3, "prompt_tokens": 2}],
)
def test_a_script_counts_from_nothing(wrong: dict[str, int]) -> None:
    """What cannot be counted, or drawn from, is refused before a server starts."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Script(**wrong)  # type: ignore[arg-type]


def test_a_status_comes_at_once_with_its_retry_after() -> None:
    """A refusal waits for no token."""
    answer = answer_of(Script(failures=(Failure("status", 1.0, status=429, retry_after=2.0),)))
    record, _ = read(answer)
    assert answer.offsets == (0,)
    assert (record.outcome, record.http_status, record.retry_after_s) == (Outcome.HTTP_ERROR, 429, 2.0)


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_failures_have_their_shares_and_depend_on_the_seed_alone(seed: int, process: int) -> None:
    """300 draws at 30 % and 20 %: within six deviations, and the same again."""
    failures = (Failure("reset", 0.3), Failure("status", 0.2))
    draws = [_kinds(Script(failures=failures, seed=seed), process) for _ in range(2)]
    assert draws[0] == draws[1]
    assert 42 < draws[0].count("reset") < 138
    assert 18 < draws[0].count("status") < 102


def _kinds(script: Script, process: int) -> list[str | None]:
    table = Timetable(script, process)
    return [None if (failure := table.failure()) is None else failure.kind for _ in range(300)]


@pytest.mark.parametrize("law", ["uniform", "normal", "exponential"])
def test_jitter_keeps_order_and_its_mean(law: str) -> None:
    """Gaps are never negative; small jitter moves the mean gap by the law's mean."""
    jitter = Jitter(law, 0.002)  # type: ignore[arg-type]
    offsets = Timetable(Script(jitter=jitter)).offsets(4000)
    gaps = [b - a for a, b in pairwise(offsets)]
    assert min(gaps) >= 0
    assert sum(gaps) / len(gaps) / MS == pytest.approx(12.0 if law == "exponential" else 10.0, abs=0.2)
    assert max(gaps) - min(gaps) > 3 * MS
    assert min(Timetable(Script(jitter=replace(jitter, scale=1.0))).offsets(100)) >= 0


def test_a_stall_moves_all_that_follows() -> None:
    """Token 3 and those after it are late by the stall."""
    offsets = Timetable(Script(stalls=(Stall(3, 0.5),))).offsets(4)
    assert offsets == (50 * MS, 60 * MS, 570 * MS, 580 * MS)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda: Script(ttft=-1), "ttft"),
        (lambda: Script(tokens=0), "tokens"),
        (lambda: Script(failures=(Failure("reset", 0.7), Failure("status", 0.7))), "140%"),
        (lambda: Script(prompt_tokens=3, cached_tokens=4), "cached_tokens"),
        (lambda: Failure("status", 1.0, status=200), "400 to 599"),
        (lambda: Failure("reset", 1.0, after=-1), "after"),
        (lambda: Stall(0, 1.0), "from 1"),
        (lambda: Framing(events_per_write=0), "events_per_write"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(broken, words: str) -> None:  # type: ignore[no-untyped-def]
    """The error names the field and what it takes."""
    with pytest.raises(ValueError, match=words):
        broken()


@given(FRAMINGS)
def test_a_script_survives_json(framing: Framing) -> None:
    """as_dict and of are inverse by way of JSON."""
    script = Script(
        framing=framing,
        jitter=Jitter("normal", 0.1),
        stalls=(Stall(2, 0.5),),
        failures=(Failure("reset", 0.1, 3),),
        tokens=4,
    )
    assert Script.of(json.loads(json.dumps(script.as_dict()))) == script


# --- requests

_BODY = b'{"max_tokens": 4, "stream": true}'
_PLAIN = (
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Request-ID:  r-1 \r\ncontent-length: 33\r\n\r\n" + _BODY
)
_CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nx-request-id: r-1\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"10;x=1\r\n" + _BODY[:16] + b"\r\n11\r\n" + _BODY[16:] + b"\r\n0\r\nA: b\r\n\r\n"
)


def _pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    bounds = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return (data[a:b] for a, b in pairwise(bounds))


@given(st.sampled_from([_PLAIN, _CHUNKED]), st.lists(st.integers(0, 400), max_size=5))
def test_requests_may_come_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    """Two in a row, cut anywhere, give the same two requests."""
    reader, found = RequestReader(), []
    for piece in _pieces(data * 2, cuts):
        request = reader.feed(piece)
        while request is not None:
            found.append(request)
            request = reader.feed(b"")
    assert [(r.method, r.path, r.request_id, r.body, r.keep_alive) for r in found] == [
        ("POST", "/v1/completions", "r-1", _BODY, True)
    ] * 2


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01 hello\r\n\r\n",
        b"GET /x HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"GET /x HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /x HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-6\r\n",
        b"a" * 70_000,
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    """The reader raises instead of waiting for more."""
    with pytest.raises(BadRequest):
        RequestReader().feed(data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"max_tokens": 0}',
        b'{"max_tokens": "5"}',
        b'{"max_tokens": true}',
        b'{"max_tokens": 2.0}',
        b'{"max_tokens": ' + b"[" * 980 + b"]" * 980 + b"}",
        b"[" * 100_000,
    ],
)
def test_a_body_that_asks_for_nothing_sensible_is_refused(body: bytes) -> None:
    """400 with the field, not a guess."""
    with pytest.raises(BadRequest):
        asked(body)


@pytest.mark.parametrize(
    ("body", "n"),
    [
        (b'{"temperature": NaN, "max_tokens": 3}', 3),
        (b'{"prompt": "\\ud800", "max_tokens": 3}', 3),
        (b'\xef\xbb\xbf{"max_tokens": 3}', 3),
        (b'{"max_tokens": 18446744073709551616}', 1 << 64),
    ],
)
def test_what_the_fast_parser_refuses_or_rounds_is_taken_as_python_takes_it(body: bytes, n: int) -> None:
    """NaN, half a character, a byte order mark, a number of 65 bits."""
    assert asked(body) == Asked(n, stream=False, include_usage=False)


@pytest.mark.parametrize(
    ("fields", "id", "keep"),
    [
        (b"X-Connection: close\r\nX-Request-Id: a\r\nx-request-id: b", "a", True),
        (b"X-Request-Id:  a b \t\r\nCONNECTION: Keep-Alive, Close", "a b", False),
        (b"Connection : close\r\nX-Request-Id: a\rConnection: close", "a\rConnection: close", True),
        (b"Proxy-Connection: close\r\nConnection:\r\nConnection: close", "", True),
    ],
)
def test_the_first_field_of_a_name_counts(fields: bytes, id: str, keep: bool) -> None:
    """In any case, without the blanks around it; a name that only ends like it is another."""
    request = RequestReader().feed(b"GET /x HTTP/1.1\r\n" + fields + b"\r\n\r\n")
    assert request is not None
    assert (request.request_id, request.keep_alive) == (id, keep)


# --- lateness


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_lateness_quantiles_are_within_their_grain(late: list[int], q: float) -> None:
    """Counting in buckets costs at most a bucket: 1 µs below 67 ms, 1.1 ms above."""
    import numpy as np

    lateness = Lateness()
    lateness.add(np.array(late, np.uint32).tobytes())
    true = float(np.quantile(np.array(late, np.float64), q, method="lower")) / 1000
    said = lateness.quantile_us(q)
    assert said is not None
    assert true - 1e-6 <= said <= true + (1.1 if true < 67_108 else 1_100)
    assert lateness.count == len(late)
