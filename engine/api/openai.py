"""OpenAI's request bodies, read strictly where it matters: pure functions from bytes to a Call.

A field that would change the output and is not supported is refused by name (ENGINE E3). A field that
changes nothing, or that nobody knows, is ignored.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.api.errors import ApiError
from engine.request import Tokens

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024

# Unsupported fields, each with the values that change nothing. Absent and null are always fine.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "documents": ([],),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}

_Count = Annotated[int, Field(ge=1)]
_Id = Annotated[int, Field(ge=0, lt=1 << 32)]


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Common(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]]


class _Chat(_Common):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: _Count | None = None


class _Completion(_Common):
    prompt: str | list[_Id] | list[str] | list[list[_Id]]


class _Tokenize(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    prompt: str | None = None
    messages: Annotated[list[_Message], Field(min_length=1)] | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to generate from: exactly one of the three is set."""

    text: str | None = None
    ids: Tokens[int] | None = None
    messages: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request body as understood. ``max_tokens`` and ``seed`` None = not given."""

    prompt: Prompt
    chat: bool
    model: str
    max_tokens: int | None = None
    temperature: float = 0.0
    """0, greedy, when not given: so that equal requests give equal answers."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    ignore_eos: bool = False
    return_token_ids: bool = False
    cache_salt: str | None = None


def parse_chat(body: bytes) -> Call:
    """The body of /v1/chat/completions. Raises ApiError 400."""
    data = _validated(_Chat, body)
    if data.max_tokens is not None and data.max_completion_tokens not in (None, data.max_tokens):
        raise _invalid("max_tokens and max_completion_tokens differ", "max_tokens")
    return _call(data, _messages(data.messages), True, data.max_completion_tokens or data.max_tokens)


def parse_completion(body: bytes) -> Call:
    """The body of /v1/completions: one prompt, as text or token ids. Raises ApiError 400."""
    data = _validated(_Completion, body)
    return _call(data, _one_prompt(data.prompt), False, data.max_tokens)


def parse_tokenize(body: bytes) -> Prompt:
    """The body of /tokenize: ``{"prompt": text}`` or ``{"messages": [..]}``. Raises ApiError 400."""
    data = _validated(_Tokenize, body)
    if (data.prompt is None) == (data.messages is None):
        raise _invalid("give either prompt or messages", "prompt")
    return Prompt(text=data.prompt) if data.messages is None else _messages(data.messages)


_Body = TypeVar("_Body", bound=BaseModel)


def _validated(kind: type[_Body], body: bytes) -> _Body:
    try:
        plain = json.loads(body)
    except ValueError as error:  # also UnicodeDecodeError
        raise _invalid(f"the body is not JSON: {error}", None) from error
    except RecursionError as error:
        raise _invalid("the body is nested too deeply", None) from error
    if not isinstance(plain, dict):
        raise _invalid("the body must be a JSON object", None)
    try:
        data = kind.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise _invalid(f"{path}: {first['msg']}", path.split(".")[0] or None) from error
    if kind is not _Tokenize:
        _refuse_unsupported(plain)
    return data


def _refuse_unsupported(plain: Mapping[str, Any]) -> None:
    for name, neutral in NEUTRAL.items():
        value = plain.get(name)
        if value is not None and value not in neutral:
            raise _invalid(
                f"{name}={json.dumps(value)[:100]} would change the output and is not supported",
                name,
                code="unsupported_parameter",
            )


def _call(data: _Common, prompt: Prompt, chat: bool, max_tokens: int | None) -> Call:
    options = data.stream_options
    return Call(
        prompt,
        chat,
        data.model,
        max_tokens,
        data.temperature or 0.0,
        data.seed,
        _stops(data.stop),
        bool(data.stream),
        options is not None and options.include_usage,
        bool(data.ignore_eos),
        bool(data.return_token_ids),
        data.cache_salt,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise _invalid(f"stop: at most {MAX_STOPS} strings, not {len(stops)}", "stop")
    if any(not text or len(text) > MAX_STOP_LENGTH for text in stops):
        raise _invalid(f"stop: strings of 1 to {MAX_STOP_LENGTH} characters", "stop")
    return stops


def _messages(messages: list[_Message]) -> Prompt:
    return Prompt(messages=tuple(message.model_dump() for message in messages))


def _one_prompt(prompt: str | list[int] | list[str] | list[list[int]]) -> Prompt:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) != 1:
            raise _invalid(f"prompt: one prompt a request, not {len(prompt)}", "prompt")
        (only,) = prompt
        assert isinstance(only, str | list)  # pydantic saw to it
        return _one_prompt(only)
    if not prompt:
        raise _invalid("prompt: must not be empty", "prompt")
    return Prompt(text=prompt) if isinstance(prompt, str) else Prompt(ids=array("I", prompt))  # type: ignore[arg-type]


def _invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param=param)
