"""The fields of OpenAI's request bodies that are read, with their ranges, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20

# Unsupported fields, each with the values that change nothing. Absent and null are always fine.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "prompt_embeds": (),
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
    "add_special_tokens": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "stop_regex": (),
    "return_tokens_as_token_ids": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "guided_whitespace_pattern": (),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
    "lora_path": (),
    "logits_processors": ([],),
    "vllm_xargs": ({},),
    "custom_logit_processor": (),
}

_Count = Annotated[int, Field(ge=1)]
_Id = Annotated[int, Field(ge=0, lt=1 << 32)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
# The first wrong item is enough: a body of a million of them is refused as fast as one.
_Ids = Annotated[list[_Id], Field(fail_fast=True)]
_Texts = Annotated[list[str], Field(fail_fast=True)]


class _StreamOptions(BaseModel):
    include_usage: bool = False


class Common(BaseModel):
    """What chat and completions share. Objects that are looked at later are taken as they come."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    top_p: _Share | None = None
    min_p: _Share | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[str, Any] | None = None
    seed: int | None = None
    stop: str | _Texts | None = None
    stop_token_ids: _Ids | None = None
    ignore_eos: bool | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    structured_outputs: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    prompt_cache_retention: str | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]]


_Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]


class Chat(Common):
    messages: _Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class Completion(Common):
    prompt: str | _Ids | _Texts | Annotated[list[_Ids], Field(fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class Tokenize(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    prompt: str | None = None
    messages: _Messages | None = None
