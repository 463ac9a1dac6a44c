"""What all dialects send: the target's options, its headers and its key."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import ClassVar, Protocol
from urllib.parse import urlsplit

import orjson

from loadgen.plan import Shot
from loadgen.targets.base import Payload
from loadgen.targets.secrets import holds_secret, names_secret, redacted
from loadgen.text import Message
from loadgen.transport import HttpRequest

Headers = tuple[tuple[str, str], ...]

_OURS = (
    *("accept", "accept-encoding", "content-encoding", "content-length", "content-type", "expect", "host"),
    *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    *("idempotency-key", "x-request-id"),
)
"""Headers that the client itself sends, and that only it can send rightly."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_URL = re.compile(r"[\x21-\x7e]*")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_ENDPOINT = re.compile(r"(?:/v1)?/(?:chat/completions|completions|responses|messages|models)/?$")


def header_fault(name: str, value: str) -> str | None:
    """Why a scenario may not set this header, and what to do; None if it may."""
    if name.lower() not in _OURS and (names_secret(name) or holds_secret(value) or holds_secret(name)):
        shown = "a header" if holds_secret(name) else name
        return (
            f"{shown} carries a secret: name the environment variable that holds it in key_env, and the"
            " header in key_header if it is not the dialect's usual one"
        )
    if (found := _name_fault(name)) is not None:
        return found
    if not _VALUE.fullmatch(value):
        return f"the value of {name} has characters that no header can hold"
    return None


def _name_fault(name: str) -> str | None:
    if name.lower() in _OURS or name.lower().startswith("x-headrace"):
        return f"{name} is sent by the client itself: remove it"
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name of a header: letters, digits and hyphens only"
    return None


class Options(Protocol):
    """What a scenario says of its target; see `HttpTarget`."""

    @property
    def url(self) -> str: ...
    @property
    def dialect(self) -> str: ...
    @property
    def key_env(self) -> str | None: ...
    @property
    def key_header(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def strict(self) -> bool: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def accepts(self) -> Sequence[str]: ...


def url_fault(url: str) -> str | None:
    """What is wrong with a target's url, and the remedy; None if nothing is. Never shows a secret."""
    if not _URL.fullmatch(url):
        return "url must look like http://host:port/prefix, without blanks, line ends or letters beyond ASCII"
    try:
        parts = urlsplit(url)
        secret, port = parts.username is not None, None if "@" in parts.netloc else parts.port
    except ValueError as error:
        return f"url must look like http://host:port/prefix ({error})"
    if secret:
        return "url holds a user name or password: remove it, and name the key's variable in key_env"
    if port == 0 or not _is_host(parts.hostname or ""):
        return f"url must look like http://host:port/prefix, not {parts.scheme}://{parts.netloc}"
    if "?" in url or "#" in url:
        return (
            "url ends in a query or a fragment, which no request would carry: remove it; an API key goes into"
            " the environment, under the name in key_env"
        )
    if holds_secret(parts.path):
        return "url holds a key in its path: remove it, and name the key's variable in key_env"
    if end := _ENDPOINT.search(parts.path):
        return f"url names one call: remove {end[0]}; the dialect says what comes after the address"
    return None


def _is_host(host: str) -> bool:
    if not re.fullmatch(r"[0-9]+(?:\.[0-9]+){3}", host):
        return _HOST.fullmatch(host) is not None
    try:
        return bool(IPv4Address(host))
    except ValueError:
        return False


def _key_header_fault(name: str) -> str | None:
    if holds_secret(name):
        return (
            "key_header is the name of a header, and not the key itself: name the key's variable in key_env"
        )
    found = _name_fault(name)
    return None if found is None else f"key_header must be the name of a header for the key: {found}"


def option_fault(target: Options) -> str | None:
    """What is wrong with a target's options, and the remedy; None if nothing is. Never shows a secret."""
    if (found := url_fault(target.url)) is not None:
        return found
    if target.key_env is not None and not _VARIABLE.fullmatch(target.key_env):
        return "key_env is the name of an environment variable, like API_KEY, and not the key itself"
    if target.key_header is not None and (found := _key_header_fault(target.key_header)) is not None:
        return found
    if target.temperature is not None and not 0 <= target.temperature <= 2:
        return f"temperature must be from 0 to 2, or null to send none; not {target.temperature:g}"
    extensions = [name for name in target.accepts if name != "max_completion_tokens"]
    if target.strict and extensions:
        return f"strict sends no extension: remove it, or {' and '.join(extensions)} from accepts"
    if target.dialect not in ("openai_chat", "openai_completions") and "token_ids" in extensions:
        return f"{target.dialect} has no token ids: remove token_ids from accepts"
    if target.dialect != "openai_chat" and "max_completion_tokens" in target.accepts:
        return f"{target.dialect} has no max_completion_tokens: remove it from accepts"
    return next((found for pair in target.headers.items() if (found := header_fault(*pair))), None)


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """The fields that every dialect takes.

    ``key_env`` names the environment variable that holds the API key; the key itself is read when a
    request is made and stored nowhere. ``key_header`` is where it goes if not where the dialect puts it.
    ``headers`` are sent with every request and hold no secret. ``strict`` sends no field but those that
    OpenAI (or Anthropic) documents and the load needs. ``ignore_eos``, ``min_tokens``, ``token_ids`` and
    ``priority`` (the class's rank) are sent only where the target is said to accept them (MEASUREMENT C14);
    ``max_completion_tokens`` takes the place of ``max_tokens``, which newer models of OpenAI refuse.
    ``temperature`` None sends none.
    """

    key_place: ClassVar[str] = "Authorization"
    version: ClassVar[Headers] = ()

    model: str
    own: bool = False
    key_env: str | None = None
    key_header: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    ignore_eos: bool = False
    min_tokens: bool = False
    token_ids: bool = False
    priority: bool = False
    max_completion_tokens: bool = False
    temperature: float | None = 0.0

    def model_of(self, shot: Shot) -> str:
        return shot.adapter or self.model

    def access(self) -> Headers:
        return (*self.version, *self._key_header(), *self.headers.items())

    def redact(self, text: str, least: int = 1) -> str:
        key = os.environ.get(self.key_env, "").strip() if self.key_env is not None else ""
        return redacted(text, key, f"[{self.key_env}]") if len(key) >= least else text

    def tokenize(self, messages: Sequence[Message]) -> HttpRequest:
        return post("/tokenize", JSON, {"model": self.model, "messages": list(messages)})

    def _key_header(self) -> Headers:
        if self.key_env is None:
            return ()
        name, key = self.key_header or self.key_place, read_key(self.key_env)
        return ((name, f"Bearer {key}" if name.lower() == "authorization" else key),)

    def _headers(self, shot: Shot, request_id: str) -> Headers:
        headers = [
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream, application/json"),
            ("Accept-Encoding", "identity"),
            ("X-Request-Id", request_id),
            *self.access(),
        ]
        if shot.idempotency_key is not None:
            headers.append(("Idempotency-Key", shot.idempotency_key))
        if self.own:
            headers += [
                ("X-Headrace-Class", shot.class_),
                ("X-Headrace-Tenant", shot.tenant),
                ("X-Headrace-Session", str(shot.session)),
            ]
        return tuple(headers)

    def _extensions(self, shot: Shot) -> Payload:
        """What only some servers understand."""
        extra: Payload = {}
        if self.strict:
            return extra
        if self.ignore_eos:
            extra["ignore_eos"] = True
        if self.min_tokens:
            extra["min_tokens"] = shot.n_out_asked
        if self.priority:
            extra["priority"] = shot.rank
        return extra

    def _greedy(self) -> Payload:
        return {} if self.temperature is None else {"temperature": self.temperature}


_ESCAPED = json.JSONEncoder(separators=(",", ":"))
JSON = (("Content-Type", "application/json"), ("Accept-Encoding", "identity"))


def post(path: str, headers: Headers, body: Payload) -> HttpRequest:
    return HttpRequest("POST", path, headers, _compact(body))


def _compact(body: Payload) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # half a surrogate, or a number of more than 64 bits
        return _ESCAPED.encode(body).encode()


def read_key(name: str) -> str:
    """The API key in the environment variable ``name``. Raises ValueError, which never shows it."""
    key = os.environ.get(name, "").strip()
    if not key:
        what = "is empty" if name in os.environ else "is not set"
        raise ValueError(
            f"target.key_env names the environment variable {name}, which {what}; export it first"
        )
    if not _VALUE.fullmatch(key):
        raise ValueError(f"the environment variable {name} holds characters that no header can hold")
    return key
