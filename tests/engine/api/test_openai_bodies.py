import json
from array import array

import pytest

from engine.api.errors import ApiError
from engine.api.openai import NEUTRAL, Prompt, parse_chat, parse_completion, parse_tokenize

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def chat(**body):
    return parse_chat(json.dumps({"model": "m", "messages": MESSAGES, **body}).encode())


def completion(**body):
    return parse_completion(json.dumps({"model": "m", "prompt": "p", **body}).encode())


def test_defaults():
    """What is not given is absent; sampling is greedy."""
    call = completion()
    assert call.prompt == Prompt(text="p")
    assert (call.max_tokens, call.seed, call.temperature, call.stop) == (None, None, 0.0, ())
    assert [call.stream, call.include_usage, call.ignore_eos, call.return_token_ids] == [False] * 4


def test_everything_that_is_supported():
    """All supported fields are read."""
    call = chat(
        max_completion_tokens=5,
        temperature=0.7,
        seed=3,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        ignore_eos=True,
        return_token_ids=True,
        cache_salt="x",
        user="harmless",
        n=1,
        top_p=1,
        unheard_of={"of": "course"},
    )
    assert call.chat
    assert [message["role"] for message in call.prompt.messages or ()] == ["system", "user"]
    assert (call.max_tokens, call.temperature, call.seed, call.stop) == (5, 0.7, 3, ("a", "b"))
    assert [call.stream, call.include_usage, call.ignore_eos, call.return_token_ids] == [True] * 4
    assert call.cache_salt == "x"


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_a_prompt_may_be_token_ids(prompt):
    """A list of ids is one prompt, also inside a list of one."""
    assert completion(prompt=prompt).prompt == Prompt(ids=array("I", [1, 2, 3]))


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_field_that_would_change_the_output_is_refused_by_name(name):
    """Every unsupported field is a 400 that names it, unless its value changes nothing."""
    with pytest.raises(ApiError) as caught:
        completion(**{name: "something else"})
    assert (caught.value.status, caught.value.param, caught.value.code) == (
        400,
        name,
        "unsupported_parameter",
    )
    for neutral in (None, *NEUTRAL[name]):
        completion(**{name: neutral})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"model": 3}, "model"),
    ],
)
def test_a_wrong_value_is_refused_by_name(body, param):
    """Wrong types and values are a 400 that names the field."""
    with pytest.raises(ApiError) as caught:
        completion(**body)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"3"])
def test_a_body_that_is_no_object_is_refused(body):
    """Neither broken JSON nor other JSON goes further."""
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert caught.value.status == 400


def test_two_limits_that_differ_are_refused():
    """max_tokens and max_completion_tokens are one limit."""
    assert chat(max_tokens=4, max_completion_tokens=4).max_tokens == 4
    with pytest.raises(ApiError, match="differ"):
        chat(max_tokens=4, max_completion_tokens=5)


def test_tokenize_takes_a_prompt_or_messages():
    """Exactly one of them."""
    assert parse_tokenize(b'{"prompt": "p", "model": "m"}') == Prompt(text="p")
    assert parse_tokenize(json.dumps({"messages": MESSAGES}).encode()).messages is not None
    for body in (b"{}", json.dumps({"prompt": "p", "messages": MESSAGES}).encode()):
        with pytest.raises(ApiError):
            parse_tokenize(body)
