"""From the fields of a body to how its tokens are drawn: pure functions that raise ApiError 400."""

from __future__ import annotations

import json
from typing import Any

from engine.api.errors import invalid
from engine.api.fields import Common
from engine.model.grammar import ANY_OBJECT
from engine.request import Bias, Sampling

MAX_BIASES = 1024
MAX_BIAS = 100
MAX_STOP_IDS = 128
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024


def sampling_of(data: Common, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """Everything but the seed. Greedy when no temperature is given: equal requests give equal answers."""
    neutral = Sampling()
    schema = _schema(data)
    ignore_eos = bool(data.ignore_eos)
    if schema is not None and ignore_eos:
        raise invalid("ignore_eos: an output that meets a schema ends where the schema ends", "ignore_eos")
    return Sampling(
        temperature=data.temperature or 0.0,
        ignore_eos=ignore_eos,
        top_k=max(data.top_k or 0, 0),
        top_p=neutral.top_p if data.top_p is None else data.top_p,
        min_p=data.min_p or 0.0,
        repetition_penalty=data.repetition_penalty or neutral.repetition_penalty,
        presence_penalty=data.presence_penalty or 0.0,
        frequency_penalty=data.frequency_penalty or 0.0,
        logit_bias=_biases(data.logit_bias or {}),
        min_tokens=_min_tokens(data.min_tokens or 0, max_tokens),
        stop_ids=_stop_ids(data.stop_token_ids or []),
        logprobs=logprobs,
        schema=schema,
    )


def choices(data: Common) -> int:
    """``n``; ``best_of`` may say the same and nothing else."""
    n = data.n or 1
    if data.best_of not in (None, n):
        message = f"best_of={data.best_of} is not supported unless it equals n, which is {n}"
        raise invalid(message, "best_of", code="unsupported_parameter")
    return n


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings."""
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(texts) > MAX_STOPS:
        raise invalid(f"stop: at most {MAX_STOPS} strings, not {len(texts)}", "stop")
    for text in texts:
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise invalid(f"stop: strings of 1 to {MAX_STOP_LENGTH} characters, not {len(text)}", "stop")
    return texts


def check_ids(how: Sampling, vocabulary: int) -> None:
    """Raises for token ids that the model does not have."""
    for name, ids in (
        ("logit_bias", [bias.token for bias in how.logit_bias]),
        ("stop_token_ids", how.stop_ids),
    ):
        if ids and max(ids) >= vocabulary:
            raise invalid(f"{name}: id {max(ids)} is not below {vocabulary}, the vocabulary", name)


def _min_tokens(least: int, max_tokens: int | None) -> int:
    if max_tokens is not None and least > max_tokens:
        raise invalid(f"min_tokens={least} is more than max_tokens={max_tokens}", "min_tokens")
    return min(least, 1 << 31)


def _stop_ids(ids: list[int]) -> tuple[int, ...]:
    if len(ids) > MAX_STOP_IDS:
        raise invalid(f"stop_token_ids: at most {MAX_STOP_IDS} ids, not {len(ids)}", "stop_token_ids")
    return tuple(sorted(set(ids)))


def _biases(given: dict[str, Any]) -> tuple[Bias, ...]:
    """OpenAI's form: token ids as text, each with -100 to 100."""
    if len(given) > MAX_BIASES:
        raise invalid(f"logit_bias: at most {MAX_BIASES} tokens, not {len(given)}", "logit_bias")
    biases: dict[int, Bias] = {}
    for token, value in given.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise invalid(f"logit_bias: {token[:20]!r} is no token id", "logit_bias")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not -MAX_BIAS <= value <= MAX_BIAS:
            raise invalid(
                f"logit_bias: {token} takes -{MAX_BIAS} to {MAX_BIAS}, not {json.dumps(value)[:20]}",
                "logit_bias",
            )
        if int(token) in biases:
            raise invalid(f"logit_bias: token {int(token)} is there twice, as {token!r} too", "logit_bias")
        biases[int(token)] = Bias(int(token), float(value))
    return tuple(biases.values())


def _schema(data: Common) -> str | None:
    """The JSON schema that the output must meet, by whichever name it came."""
    form, guided = data.response_format, data.guided_json
    found = {
        "response_format": None if form is None else _of_response_format(form),
        "guided_json": None if guided is None else _text(guided, "guided_json"),
        "structured_outputs": _of_structured_outputs(data.structured_outputs or {}),
    }
    given = [name for name, schema in found.items() if schema is not None]
    if len(given) > 1:
        raise invalid(f"give one of {' and '.join(given)}", given[1])
    return found[given[0]] if given else None


def _of_response_format(given: dict[str, Any]) -> str | None:
    name = "response_format"
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            inner = given.get("json_schema")
            if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
                raise invalid("response_format: json_schema needs {name, schema}, schema an object", name)
            return _text(inner["schema"], name)
        case other:
            said = f"{json.dumps(other)[:40]} is none of text, json_object, json_schema"
            raise invalid(f"response_format.type: {said}", name)


def _of_structured_outputs(given: dict[str, Any]) -> str | None:
    name = "structured_outputs"
    asked = {key: value for key, value in given.items() if value not in (None, False)}
    if not asked:
        return None
    match asked:
        case {"json": dict() | str() as schema} if len(asked) == 1:
            return _text(schema, name)
        case {"json_object": True} if len(asked) == 1:
            return ANY_OBJECT
    said = f"{name}: only json (a schema) or json_object is supported, not {', '.join(asked)}"
    raise invalid(said[:200], name, code="unsupported_parameter")


def _text(schema: dict[str, Any] | str, name: str) -> str:
    """Compact JSON of a schema, its keys in their order: it is the order of the output's properties."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise invalid(f"{name}: the schema is no JSON: {error}", name) from error
        if not isinstance(schema, dict):
            raise invalid(f"{name}: the schema must be a JSON object", name)
    return json.dumps(schema, separators=(",", ":"))
