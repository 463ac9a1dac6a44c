"""A tokenizer from a folder in Hugging Face layout, on the ``tokenizers`` library alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.model.chat import ChatTemplate, Messages

_TOKENIZER = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class HfTokenizer:
    """``tokenizer.json`` with the chat template of ``chat_template.jinja`` or ``tokenizer_config.json``.

    ``known`` ids are in the model's vocabulary: a tokenizer may have more, of which the model could make
    nothing. Raises ValueError (``folder/file: what is wrong``) for a folder without a usable tokenizer.
    """

    def __init__(self, folder: Path, known: int | None = None) -> None:
        path = folder / _TOKENIZER
        if not path.is_file():
            raise ValueError(
                f"{path}: missing; this engine needs the tokenizer in the tokenizers library's format"
            )
        content = path.read_bytes()
        definition = read_json(path)
        # It only adds special tokens, which templates write themselves, and trims spans of spaces.
        definition["post_processor"] = None
        try:
            self._backend = Backend.from_str(json.dumps(definition))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path}: not a tokenizer: {error}") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        settings = read_json(folder / _SETTINGS) if (folder / _SETTINGS).is_file() else {}
        specials = {name: _token_text(settings.get(name)) for name in _SPECIAL_NAMES}
        template = _template_source(folder, settings)
        self._template = (
            ChatTemplate(template, {name: text for name, text in specials.items() if text is not None})
            if template is not None
            else None
        )
        self._folder = folder
        own = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocabulary = own if known is None else min(own, known)
        self.eos_ids = self._eos_ids(folder, specials["eos_token"])
        self._added = {
            int(token["id"]): (str(token["content"]), bool(token.get("special")))
            for token in definition.get("added_tokens") or ()
        }
        self.special_ids = frozenset(token for token, (_, special) in self._added.items() if special)
        self._bytes_as_letters = '"ByteLevel"' in json.dumps(definition.get("decoder"))
        self._trims = _sentence_piece_trims(definition.get("decoder"))
        self.digest = hashlib.blake2b(
            content + json.dumps([template, specials], sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Sequence[int]) -> str:
        """As the library does it, but for bytes in angles: of a row of them with one that ends inside a
        character it makes U+FFFD altogether, so that a text that grows would change what it has said."""
        if self._trims is None:
            decoded: str = self._backend.decode(list(ids), skip_special_tokens=True)
            return decoded
        text = b"".join(self.piece(i) for i in ids if i not in self.special_ids).decode(errors="replace")
        for _ in range(self._trims):
            text = text.removeprefix(" ")
        return text

    def piece(self, token: int) -> bytes:
        """An added token is its own text; others are written in the alphabet of the decoder: letters for
        bytes (byte-level BPE), else ``▁`` for a space and ``<0x0A>`` for a byte (SentencePiece)."""
        if token in self._added:
            return self._added[token][0].encode()
        text = self._backend.id_to_token(token) or ""
        if self._bytes_as_letters:
            return b"".join(_LETTERS.get(letter) or letter.encode() for letter in text)
        if byte := _BYTE_TOKEN.fullmatch(text):
            return bytes((int(byte[1], 16),))
        return text.replace("▁", " ").encode()

    def render_chat(self, messages: Messages) -> str:
        if self._template is None:
            raise ValueError(f"{self._folder} has no chat template: use /v1/completions with this model")
        return self._template.render(messages)

    def _eos_ids(self, folder: Path, eos_token: str | None) -> frozenset[int]:
        ids = set(eos_ids_of(folder))
        if eos_token is not None:
            token = self._backend.token_to_id(eos_token)
            if token is None:
                raise ValueError(f"{folder / _SETTINGS}: eos_token {eos_token!r} is not in {_TOKENIZER}")
            ids.add(token)
        return frozenset(ids)


def _sentence_piece_trims(decoder: Any) -> int | None:
    """How many blanks a decoder of SentencePiece's kind takes off the front of a text: blocks for spaces,
    bytes in angles, joined, then trimmed. None for every other kind."""
    steps = decoder.get("decoders") if isinstance(decoder, dict) else None
    if not isinstance(steps, list) or steps[:3] != _SENTENCE_PIECE:
        return None
    if len(steps) == 3:
        return 0
    strip = steps[3]
    trims = len(steps) == 4 and strip == {**_STRIP, "start": strip.get("start")}
    return int(strip["start"]) if trims else None


def _letters() -> dict[str, bytes]:
    """The letters that byte-level BPE writes the 256 bytes with: printable ones as they are, the others
    as the characters from 256 on, in order (as GPT-2 does)."""
    printable = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in printable]
    letters = [*printable, *(256 + n for n in range(len(others)))]
    return {chr(letter): bytes((byte,)) for letter, byte in zip(letters, [*printable, *others], strict=True)}


_LETTERS = _letters()
_SENTENCE_PIECE = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP = {"type": "Strip", "content": " ", "stop": 0}
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


def eos_ids_of(folder: Path) -> frozenset[int]:
    """The end-of-sequence ids that ``generation_config.json`` names, else those of ``config.json``. Raises
    ValueError naming the file."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(token) is int and token >= 0 for token in ids):
                raise ValueError(
                    f"{folder / name}: eos_token_id is {value!r}, neither an id nor a list of ids"
                )
            if ids:
                return frozenset(ids)
    return frozenset()


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``. Raises ValueError naming the file if it is missing or no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds {type(value).__name__}, not an object")
    return value


def _token_text(value: object) -> str | None:
    """Special tokens are written as text or as ``{"content": text, ..}``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / _TEMPLATE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
