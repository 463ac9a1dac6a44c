"""What looks like a key where none may stand, and a key taken out of what a server repeats."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from functools import lru_cache
from html.entities import codepoint2name
from urllib.parse import unquote

_NAME = re.compile(
    r"(?:api|access|subscription)[-_]?key|auth(?!or(?!i[sz]))|cookie|secret|password|credential"
    r"|signature|token(?!s|iz|[-_](?:budget|count|limit))|(?:^|[-_])(?:pat|jwt|bearer|pwd)$"
    r"|(?:^|(?<!cache)(?<!routing)(?<!partition)(?<!shard)(?<!surrogate)(?<!idempotency)[-_])key$",
    re.I,
)
_VALUE = re.compile(
    r"^\s*(?i:bearer|basic)\s|^\s*(?i:token|apikey)\s+[\w.+/=-]{16}"
    r"|(?<![A-Za-z0-9])(?:(?i:sk)-[\w-]{12}|gsk_\w{12}|gh[oprsu]_\w{12}|github_pat_\w{12}|glpat-[\w-]{12}"
    r"|hf_[A-Za-z0-9]{16}|xai-[A-Za-z0-9]{16}|pplx-[A-Za-z0-9]{16}|nvapi-[\w-]{16}|r8_[A-Za-z0-9]{16}"
    r"|AIza[\w-]{16}|AKIA[A-Z0-9]{16}|eyJ[\w-]{6,}\.[\w-])"
)
"""A scheme of RFC 9110 11.6.2, or how the keys of vendors begin; the last is a JSON web token."""
_WORD = 6
"""A key of fewer characters may be a word, such as EMPTY or none, and is looked for as it is written only."""


def names_secret(header: str) -> bool:
    """A header of this name carries a secret."""
    return _NAME.search(header) is not None


def holds_secret(text: str) -> bool:
    """A key of a known vendor is in this text, percent-encoded or not."""
    return _VALUE.search(unquote(text)) is not None


def redacted(text: str, key: str, mark: str) -> str:
    """``text`` with ``mark`` for every ``key``: as it is, in any case, escaped for a URL, JSON, HTML or
    Python, also twice, and as base64."""
    if len(key) < _WORD:
        return text.replace(key, mark) if key else text
    anchors, pattern = _forms(key)
    lower = text.lower()
    return pattern.sub(lambda _: mark, text) if any(anchor in lower for anchor in anchors) else text


@lru_cache(maxsize=4)
def _forms(key: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Texts of which one is in every text with the key, which are found faster, and what the key matches."""
    codes = _codes(key.encode(errors="replace"))
    forms = [_spelled(key), *(f"{_spelled(code)}(?:[a-z0-9+/_-]?=+)?" for code in codes)]
    anchors = (max(re.findall(r"[a-z0-9]*", form.lower()), key=len) for form in (key, *codes))
    return tuple(anchors), re.compile("|".join(forms), re.I)


def _codes(key: bytes) -> list[str]:
    """The base64 characters that the key alone decides, wherever it begins in what is encoded::

    k = 1    ........|key key|..      8 bits a byte
             ......|......|......     6 bits a character
    """
    return [
        code(bytes(k) + key)[-(-8 * k // 6) : 8 * (k + len(key)) // 6].decode()
        for code in (b64encode, urlsafe_b64encode)
        for k in range(3)
    ]


def _spelled(text: str) -> str:
    return "".join(map(_letter, re.sub(r"\\+", r"\\", text)))


def _letter(letter: str) -> str:
    """What a character of a key matches. Letters and digits are never escaped; backslashes may be doubled
    ever again, and for them a match never turns back (``++``): a server could send them without end."""
    if letter.isascii() and letter.isalnum():
        return letter
    code, name = ord(letter), codepoint2name.get(ord(letter), "apos")
    octets = [letter.encode(charset, "replace") for charset in ("utf-8", "latin-1")]
    coded = ["".join(rf"(?:%(?:25)*|\\*+x){octet:02x}" for octet in written) for written in octets]
    entity = f"&(?:amp;)*(?:#0*+{code}|#x0*+{code:x}|{name});"
    forms = "|".join([entity, rf"\\*+u{code:04x}", *coded])
    if letter == "\\":
        return rf"(?:{forms}|\\++)++"
    return rf"(?:{forms}|\\*+{re.escape(letter)}{'|[+]' if letter == ' ' else ''})"
