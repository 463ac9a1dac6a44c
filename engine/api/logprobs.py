"""Logarithms of probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.request import Logprob

Piece = Callable[[int], bytes]
"""The bytes of a token (engine.model.tokenizer.Tokenizer.piece)."""


def of_chat(logprobs: Sequence[Logprob], piece: Piece) -> dict[str, Any]:
    """``{"content": [{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}]}``."""
    content = []
    for each in logprobs:
        top = [
            _entry(token, value, piece) for token, value in zip(each.top_ids, each.top_values, strict=True)
        ]
        content.append({**_entry(each.token, each.value, piece), "top_logprobs": top})
    return {"content": content, "refusal": None}


def of_completion(logprobs: Sequence[Logprob], offsets: Sequence[int], piece: Piece) -> dict[str, Any]:
    """``{tokens, token_logprobs, top_logprobs, text_offset}``, lists with one entry a token. ``offsets`` are
    characters of the output before each. The drawn token is among the top ones, also where it is not one."""
    tops = []
    for each in logprobs:
        top = {_name(piece(token)): value for token, value in zip(each.top_ids, each.top_values, strict=True)}
        tops.append({**top, _name(piece(each.token)): each.value})
    return {
        "tokens": [_name(piece(each.token)) for each in logprobs],
        "token_logprobs": [each.value for each in logprobs],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def _entry(token: int, value: float, piece: Piece) -> dict[str, Any]:
    data = piece(token)
    return {"token": _name(data), "logprob": value, "bytes": list(data)}


def _name(data: bytes) -> str:
    r"""The token as text; one that is only a part of a character as ``bytes:\xf0\x9f``, as OpenAI does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
