"""OpenAI's request bodies, read strictly where it matters: pure functions from bytes to a Call.

A field that would change the output and is not supported is refused by name (ENGINE E3). A field that
changes nothing, or that nobody knows, is ignored. docs/http.md lists what is supported.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from engine.api import sampling
from engine.api.errors import invalid
from engine.api.fields import NEUTRAL, Chat, Common, Completion, Message, Tokenize
from engine.request import Sampling, Tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to generate from: exactly one of the three is set."""

    text: str | None = None
    ids: Tokens[int] | None = None
    messages: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request body as understood. ``max_tokens`` and ``seed`` None = not given; the seed in ``sampling``
    is not set."""

    prompt: Prompt
    chat: bool
    model: str
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    cache_salt: str | None = None
    retention: str | None = None


def parse_chat(body: bytes) -> Call:
    """The body of /v1/chat/completions. Raises ApiError 400."""
    data = _validated(Chat, body)
    if data.top_logprobs and not data.logprobs:
        raise invalid(f"top_logprobs={data.top_logprobs} needs logprobs=true", "top_logprobs")
    top = (data.top_logprobs or 0) if data.logprobs else None
    return _call(data, _messages(data.messages), True, top)


def parse_completion(body: bytes) -> Call:
    """The body of /v1/completions: one prompt, as text or token ids. Raises ApiError 400."""
    data = _validated(Completion, body)
    top = (data.model_extra or {}).get("top_logprobs")
    if top not in (None, 0):
        said = "is for chat; completions take the number in logprobs"
        raise invalid(f"top_logprobs={_short(top)} {said}", "top_logprobs", code="unsupported_parameter")
    return _call(data, _one_prompt(data.prompt), False, data.logprobs)


def parse_tokenize(body: bytes) -> Prompt:
    """The body of /tokenize: ``{"prompt": text}`` or ``{"messages": [..]}``. Raises ApiError 400."""
    data = _validated(Tokenize, body)
    if (data.prompt is None) == (data.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    return Prompt(text=data.prompt) if data.messages is None else _messages(data.messages)


_Body = TypeVar("_Body", bound=BaseModel)


def _validated(kind: type[_Body], body: bytes) -> _Body:
    try:
        plain = json.loads(body, parse_constant=_no_number)
    except ValueError as error:  # also UnicodeDecodeError
        raise invalid(f"the body is not JSON: {error}", None) from error
    except RecursionError as error:
        raise invalid("the body is nested too deeply", None) from error
    if not isinstance(plain, dict):
        raise invalid("the body must be a JSON object", None)
    try:
        data = kind.model_validate(plain)
    except ValidationError as error:
        place, message = _fault(error)
        path = ".".join(map(str, place))
        raise invalid(f"{path}: {message}", path.split(".")[0] or None) from error
    if kind is not Tokenize:
        _refuse_unsupported(plain)
    return data


def _fault(error: ValidationError) -> tuple[list[str | int], str]:
    """Place and message of the first error. A value that may be of several kinds has one for each: that
    counts which found most of it right, as ``[7, -1]`` is a list of ids rather than a text."""
    found = error.errors(include_url=False, include_context=False)
    first = found[0]["loc"]
    kind = next((at for at, step in enumerate(first) if _is_kind(step)), len(first))
    same = [each for each in found if each["loc"][:kind] == first[:kind]]
    deepest = max(same, key=lambda each: _right(each["loc"]))
    place = [step for step in deepest["loc"] if not _is_kind(step)]
    return place, deepest["msg"] + _not(deepest["input"])


def _not(value: Any) -> str:
    """What was given instead, where that is one value and no list or object."""
    if isinstance(value, list | dict):
        return ""
    return f", not {_short(value[:100] if isinstance(value, str) else value)}"


def _is_kind(step: str | int) -> bool:
    return isinstance(step, str) and (step == "str" or "[" in step)


def _right(place: tuple[str | int, ...]) -> tuple[int, list[int]]:
    return len(place), [step for step in place if isinstance(step, int)]


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refuse_unsupported(plain: Mapping[str, Any]) -> None:
    for name, neutral in NEUTRAL.items():
        value = plain.get(name)
        if value is not None and value not in neutral:
            said = f"{name}={_short(value)} would change the output and is not supported"
            raise invalid(said, name, code="unsupported_parameter")


def _short(value: Any) -> str:
    return json.dumps(value)[:100]


def _call(data: Common, prompt: Prompt, chat: bool, logprobs: int | None) -> Call:
    options, max_tokens = data.stream_options, _max_tokens(data)
    return Call(
        prompt,
        chat,
        data.model,
        max_tokens,
        sampling.sampling_of(data, max_tokens, logprobs),
        data.seed,
        sampling.choices(data),
        sampling.stops(data.stop),
        bool(data.stream),
        options is not None and options.include_usage,
        bool(data.return_token_ids),
        data.cache_salt,
        data.prompt_cache_retention,
    )


def _max_tokens(data: Common) -> int | None:
    """The most tokens of output, by whichever name they came."""
    if data.max_tokens is not None and data.max_completion_tokens not in (None, data.max_tokens):
        raise invalid("max_tokens and max_completion_tokens differ", "max_tokens")
    return data.max_completion_tokens or data.max_tokens


def _messages(messages: list[Message]) -> Prompt:
    return Prompt(messages=tuple(message.model_dump() for message in messages))


def _one_prompt(prompt: str | list[int] | list[str] | list[list[int]]) -> Prompt:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) != 1:
            raise invalid(f"prompt: one prompt a request, not {len(prompt)}", "prompt")
        (only,) = prompt
        assert isinstance(only, str | list)  # pydantic saw to it
        return _one_prompt(only)
    if not prompt:
        raise invalid("prompt: must not be empty", "prompt")
    return Prompt(text=prompt) if isinstance(prompt, str) else Prompt(ids=array("I", prompt))  # type: ignore[arg-type]
