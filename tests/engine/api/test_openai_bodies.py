import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import ApiError
from engine.api.fields import NEUTRAL, Chat, Completion
from engine.api.openai import Call, Prompt, parse_chat, parse_completion, parse_tokenize
from engine.messages import Submit
from engine.request import Bias, Request, Sampling
from engine.wire import encode

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def chat(**body):
    return parse_chat(json.dumps({"model": "m", "messages": MESSAGES, **body}).encode())


def completion(**body):
    return parse_completion(json.dumps({"model": "m", "prompt": "p", **body}).encode())


def test_defaults():
    """What is not given is absent and changes nothing; sampling is greedy."""
    call = completion()
    assert call.prompt == Prompt(text="p")
    assert (call.max_tokens, call.seed, call.n, call.stop) == (None, None, 1, ())
    assert [call.stream, call.include_usage, call.return_token_ids] == [False] * 3
    assert call.sampling == Sampling()
    assert chat().sampling == Sampling()


COMMON = {
    "max_tokens": 50,
    "temperature": 0.7,
    "seed": 3,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": -2,
    "frequency_penalty": 2,
    "logit_bias": {"7": -100, "8": 1.5},
    "min_tokens": 4,
    "stop": ["a", "b"],
    "stop_token_ids": [9, 5, 9],
    "n": 3,
    "best_of": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "cache_salt": "x",
    "prompt_cache_retention": "1h",
    "user": "harmless",
    "unheard_of": {"of": "course"},
}
DRAWN = Sampling(
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=-2.0,
    frequency_penalty=2.0,
    logit_bias=(Bias(7, -100.0), Bias(8, 1.5)),
    min_tokens=4,
    stop_ids=(5, 9),
)


@pytest.mark.parametrize("parse", [chat, completion])
def test_everything_that_is_supported(parse):
    """All supported fields are read, on both paths."""
    call = parse(**COMMON)
    assert call.chat == (parse is chat)
    assert call.sampling == DRAWN
    assert (call.max_tokens, call.seed, call.n, call.stop) == (50, 3, 3, ("a", "b"))
    assert [call.stream, call.include_usage, call.return_token_ids] == [True] * 3
    assert (call.cache_salt, call.retention) == ("x", "1h")
    assert parse(ignore_eos=True).sampling.ignore_eos
    assert parse(top_k=-1).sampling.top_k == 0
    assert parse(max_completion_tokens=5).max_tokens == 5


def test_logprobs_in_both_dialects():
    """Chat says whether and how many, completions say how many."""
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling.logprobs == 5
    assert chat(logprobs=False).sampling.logprobs is None
    assert completion(logprobs=0).sampling.logprobs == 0
    assert completion(logprobs=5).sampling.logprobs == 5
    for wrong in ({"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 2}):
        with pytest.raises(ApiError, match="needs logprobs"):
            chat(**wrong)
    with pytest.raises(ApiError, match="for chat"):
        completion(logprobs=1, top_logprobs=2)


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
TEXT = '{"type":"object","properties":{"b":{},"a":{}}}'


@pytest.mark.parametrize(
    ("body", "schema"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, '{"type":"object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            TEXT,
        ),
        ({"guided_json": SCHEMA}, TEXT),
        ({"guided_json": json.dumps(SCHEMA)}, TEXT),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, TEXT),
        ({"structured_outputs": {"json_object": True}}, '{"type":"object"}'),
        ({"structured_outputs": {}}, None),
    ],
)
def test_a_schema_by_any_of_its_names(body, schema):
    """The schema travels as text, its keys in their order."""
    assert completion(**body).sampling.schema == schema
    assert chat(**body).sampling.schema == schema


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
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": True}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "2"}}, "logit_bias"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"logit_bias": {"1": 100, "01": 100}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [1 << 32]}, "stop_token_ids"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"prompt_cache_retention": 5}, "prompt_cache_retention"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}, "response_format"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"guided_json": {}, "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": [7, -1]}, "prompt.1: Input should be greater than or equal to 0, not -1"),
        ({"prompt": [1 << 32]}, "prompt.0: Input should be less than 4294967296, not 4294967296"),
        ({"prompt": [7, "a"]}, 'prompt.1: Input should be a valid integer, not "a"'),
        ({"prompt": ["a", 7]}, "prompt.1: Input should be a valid string, not 7"),
        ({"prompt": [[1], [2, -3]]}, "prompt.1.1: Input should be greater than or equal to 0, not -3"),
        ({"prompt": 7}, "prompt: Input should be a valid string, not 7"),
        ({"stop": ["a", 1]}, "stop.1: Input should be a valid string, not 1"),
    ],
)
def test_of_a_list_the_item_that_is_wrong_is_named(body, message):
    """Also where the field takes a text as well: ``[7, -1]`` is no bad text but a list with a bad id."""
    with pytest.raises(ApiError) as refused:
        completion(**body)
    assert (refused.value.message, refused.value.param) == (message, next(iter(body)))


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("max_tokens", 0, "1"),
        ("max_completion_tokens", -3, "1"),
        ("n", 129, "128"),
        ("temperature", 2.5, "2"),
        ("top_p", -0.5, "0"),
        ("min_p", 7, "1"),
        ("top_k", -2, "-1"),
        ("repetition_penalty", 0.05, "0.1"),
        ("frequency_penalty", 3, "2"),
        ("min_tokens", -1, "0"),
        ("logprobs", 21, "20"),
    ],
)
def test_a_refusal_names_field_value_and_limit(field, value, limit):
    """As docs/http.md promises: nobody has to guess what of the body was meant."""
    with pytest.raises(ApiError) as refused:
        completion(**{field: value})
    message = refused.value.message
    assert message.startswith(f"{field}: ")
    assert message.endswith(f" {limit}, not {value}")


def test_a_long_wrong_value_is_cut():
    """What was given is shown as far as it helps."""
    with pytest.raises(ApiError, match=r'seed: .*, not "x{90,100}') as refused:
        completion(seed="x" * 1_000_000)
    assert len(refused.value.message) < 300


FIELDS = sorted({*Chat.model_fields, *Completion.model_fields, *NEUTRAL} - {"model", "prompt", "messages"})


def answered(parse, body) -> Call | ApiError:
    try:
        return parse(**body)
    except ApiError as error:
        return error


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), st.sampled_from(["chat", "completion"]))
def test_any_value_of_any_field_is_understood_or_refused(body, kind):
    """A 400 that names a field, or a call: nothing else ever comes of a body."""
    answer = answered({"chat": chat, "completion": completion}[kind], body)
    if isinstance(answer, ApiError):
        assert answer.status == 400
        assert answer.param in {*FIELDS, None}
        assert len(answer.message) < 500
    else:
        request = Request(1, array("I", [1]), b"", (), 1, sampling=answer.sampling, n=answer.n)
        assert encode(Submit(request)), "what was understood can be sent to a worker"


def test_the_documentation_names_every_field():
    """docs/http.md is where a user looks first."""
    text = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
    missing = [name for name in Chat.model_fields | Completion.model_fields if f"`{name}" not in text]
    assert missing == []


LARGE = {
    "a 1 MB stop list": ({"stop": ["x" * 10] * 100_000}, "at most 16 strings, not 100000"),
    "one stop of 1 MB": ({"stop": "x" * 1_000_000}, "1 to 1024 characters, not 1000000"),
    "100,000 stop ids": ({"stop_token_ids": list(range(100_000))}, "at most 128 ids, not 100000"),
    "a million wrong stop ids": ({"stop_token_ids": ["x"] * 1_000_000}, "valid integer"),
    "100,000 biases": (
        {"logit_bias": {str(i): 1 for i in range(100_000)}},
        "at most 1024 tokens, not 100000",
    ),
    "a huge n": ({"n": 10**30}, "less than or equal to 128"),
    "a huge top_k": ({"top_k": 10**30}, "less than 2147483648"),
    "a huge number": ({"presence_penalty": 10**400}, "."),
    "a deep value": ({"temperature": json.loads("[" * 500 + "]" * 500)}, "valid number"),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_refused_with_the_numbers(name):
    """A short answer, whatever the size of the question."""
    body, said = LARGE[name]
    with pytest.raises(ApiError, match=said) as caught:
        completion(**body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"3",
        b'{"model": "m", "prompt": "p", "temperature": NaN}',
        b'{"model": "m", "prompt": "p", "top_p": -Infinity}',
        b'{"model": "m", "prompt": "p", "presence_penalty": 1e999}',
        b'{"model": "m", "prompt": "p", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "m", "prompt": "p", "stop": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_body_that_is_no_object_is_refused(body):
    """Neither broken JSON nor other JSON goes further, nor numbers that are none."""
    for parse in (parse_completion, parse_chat):
        with pytest.raises(ApiError) as caught:
            parse(body)
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
