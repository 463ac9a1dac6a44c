"""Which events are tokens, and how many, in the shapes that servers give them (MEASUREMENT C5, C6, C9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.log import log_of
from loadgen.raw import Raw
from loadgen.targets import TARGETS, OpenAIChat
from loadgen.targets.base import Dialect
from loadgen.timeline import Timeline
from loadgen.tokens import CountTokens
from results.record import Outcome, Record

MS = 1_000_000
ROLE = {"role": "assistant", "content": ""}
Event = tuple[int, dict[str, Any]]


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An event of a chat; what is more goes where OpenAI's goes."""
    inside = {key: more.pop(key) for key in ("logprobs", "token_ids", "text", "message") if key in more}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **inside}], **more}


def text(words: str, **more: Any) -> dict[str, Any]:
    return chunk({"content": words}, **more)


FINISH = chunk({}, "stop")


def record_of(
    *events: Event, dialect: Dialect | None = None, cut: bool = False, count: CountTokens | None = None
) -> Record:
    """Of a stream with an event a read, times in ms; ``cut``: it is reset and not closed as it should."""
    packed = [f"data: {json.dumps(payload)}\n\n".encode() for _, payload in events]
    times = [t * MS for t, _ in events]
    if not cut and dialect is None:
        packed, times = [*packed, b"data: [DONE]\n\n"], [*times, times[-1] + MS]
    ending = "reset" if cut else "complete"
    raw = Raw(status=200, ending=ending, reads=log_of(times, [0] * len(packed), packed))
    timeline = Timeline(dialect or OpenAIChat("m"))
    timeline.replay(raw, raw.users, 0)
    return timeline.close(Record(0, "c", "window", Outcome.UNKNOWN, start=0), 0, None, count).record


@pytest.mark.parametrize("empty", [ROLE, {}, {"content": ""}])
@pytest.mark.parametrize("finished", [True, False])
def test_usage_at_the_end_makes_no_token_of_an_empty_choice(empty: dict[str, Any], finished: bool) -> None:
    """OpenRouter's last event has a choice, an empty one, beside the usage of all that came before."""
    first: list[Event] = [(100, text("a")), (120, text("b"))]
    last: list[Event] = [(131, chunk(empty, **usage(7, 2)))]
    ends: list[Event] = [(130, FINISH)]
    record = record_of(*first, *(ends + last if finished else last + ends))
    assert (record.last_token, record.n_out, record.event_tokens) == (120 * MS, 2, [1, 1])


def test_usage_of_each_event_still_tells_of_tokens_without_text() -> None:
    """Part of a character, or a special token: nothing to be seen, and a token all the same."""
    record = record_of(
        (100, text("a", **usage(7, 1))), (120, text("", **usage(7, 2))), (140, text("b", **usage(7, 3)))
    )
    assert (record.event_us, record.event_tokens) == ([0, 20_000, 40_000], [1, 1, 1])


@pytest.mark.parametrize("said", [{"content": []}, {"tokens": [], "token_logprobs": []}])
@pytest.mark.parametrize("counts", [True, False])
def test_empty_logprobs_say_nothing(said: dict[str, Any], counts: bool) -> None:
    record = record_of(
        (100, text("a", logprobs=said)),
        (120, text("b", logprobs=said)),
        (121, FINISH),
        count=(lambda words: len(words)) if counts else None,
    )
    assert (record.n_out, record.n_out_source) == (2, "tokenizer" if counts else "events")
    assert record.event_tokens == ([1, 1] if counts else None)


def test_ids_that_are_never_any_are_no_count() -> None:
    record = record_of((100, text("a", token_ids=[])), (120, text("b", token_ids=[])))
    assert (record.n_out, record.n_out_source, record.event_tokens) == (2, "events", None)


def test_the_id_of_the_end_is_no_event_of_a_token() -> None:
    """C5: a finish is none; that the id was made counts."""
    record = record_of(
        (100, text("a", token_ids=[5])),
        (120, text("b", token_ids=[6])),
        (140, chunk({}, "stop", token_ids=[2])),
    )
    assert (record.last_token, record.event_tokens) == (120 * MS, [1, 1])
    assert (record.n_out, record.n_out_source) == (3, "ids")


@pytest.mark.parametrize("said", [0, 1, 2])
def test_usage_that_was_overtaken_is_not_what_a_broken_answer_had(said: int) -> None:
    """The first event of a stream may say 0; who breaks off has no later word."""
    early = {"choices": [], **usage(7, said)}
    events: list[Event] = [(90, early), *((100 + t, text("x")) for t in range(3))]
    assert record_of(*events, cut=True).n_out == 3
    assert record_of(*events, (104, FINISH)).n_out == said, "finished, the last word of usage holds (C9)"


def test_usage_that_runs_ahead_is_what_a_broken_answer_had() -> None:
    assert record_of((100, text("a", **usage(7, 4))), cut=True).n_out == 4


def test_a_broken_answer_of_anthropic_had_its_events() -> None:
    """``message_start`` says 1 whatever comes."""
    begin = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}
    dialect = TARGETS["anthropic_messages"](model="m")  # type: ignore[call-arg]
    record = record_of((90, begin), *((100 + t, piece) for t in range(8)), dialect=dialect, cut=True)
    assert (record.n_out, record.n_out_source) == (8, "events")


def test_what_is_no_text_is_not_left_to_the_tokenizer() -> None:
    """It would find nothing in a tool call or a refusal, and is not asked."""
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    for events in (
        [chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]})],
        [chunk({"refusal": "no"}), chunk({"refusal": " way"})],
    ):
        record = record_of((100, events[0]), (120, events[1]), (130, FINISH), count=len)
        assert (record.n_out, record.n_out_source) == (2, "events")
        record = record_of(
            (100, events[0]), (120, events[1]), (130, chunk({}, "stop", **usage(7, 9))), count=len
        )
        assert "tokenizer_mismatch" not in (record.warnings or ())


def test_reasoning_and_text_are_no_one_word() -> None:
    record = record_of((100, chunk({"reasoning": "a"})), (120, text("b")), count=lambda words: 1)
    assert record.n_out == 2


def test_reasoning_that_is_never_shown_came_with_no_event() -> None:
    """C6: 300 hidden tokens are in usage when the first visible one comes."""
    details = {"completion_tokens_details": {"reasoning_tokens": 300}}
    events = [(100 + 20 * n, text("xyz"[n], **usage(7, 301 + n, **details))) for n in range(3)]
    record = record_of(*events, count=len)
    assert (record.n_out, record.n_reasoning, record.k_first) == (303, 300, 1)
    assert record.event_tokens == [1, 1, 1]
    assert "hidden_reasoning" in record.warnings
    assert "tokenizer_mismatch" not in record.warnings


def test_a_sole_event_has_all_tokens() -> None:
    """No time passed between them that could be shared out: no TPOT, rather than one of 0 (C-11)."""
    record = record_of((100, text("all of it")), (110, chunk({}, "stop", **usage(7, 5))))
    assert (record.n_out, record.k_first) == (5, 5)


def test_calls_of_one_number_but_of_their_own_names_are_several() -> None:
    """Some servers number every call 0, some give each piece of a call a new id."""
    begin = [
        {"index": 0, "id": one, "function": {"name": name, "arguments": ""}} for one, name in ("af", "bg")
    ]
    piece = [{"index": 0, "id": one, "function": {"arguments": "{}"}} for one in "xy"]
    timeline = Timeline(OpenAIChat("m"))
    events = [begin[0], piece[0], begin[1], piece[1]]
    packed = [f"data: {json.dumps(chunk({'tool_calls': [call]}))}\n\n".encode() for call in events]
    raw = Raw(status=200, ending="complete", reads=log_of(range(4), [0] * 4, packed))
    timeline.replay(raw, raw.users, 0)
    calls = timeline.close(Record(0, "c", "window", Outcome.UNKNOWN), 0).tool_calls
    assert [(call["id"], call["name"], call["arguments"]) for call in calls] == [
        ("a", "f", "{}"),
        ("b", "g", "{}"),
    ]


def test_an_empty_delta_is_not_looked_up_in_the_message() -> None:
    """A last event that repeats the whole answer beside an empty delta says nothing new."""
    record = record_of(
        (100, text("a")), (120, text("b")), (140, chunk({}, "stop", message={"content": "ab"}))
    )
    assert (record.last_token, len(record.event_us)) == (120 * MS, 2)


def test_the_id_of_a_sound_is_no_sound() -> None:
    record = record_of((90, chunk({"audio": {"id": "s"}})), (100, chunk({"audio": {"data": "AA=="}})))
    assert (record.first_token, len(record.event_us)) == (100 * MS, 1)


@pytest.mark.parametrize("empty", [{"message": "", "type": "", "code": None}, {}, None, ""])
def test_an_error_without_a_word_is_none(empty: Any) -> None:
    record = record_of((100, text("a", error=empty)), (101, FINISH))
    assert record.outcome == "completed"
