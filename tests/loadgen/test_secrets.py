"""A key that a server repeats, in whatever form, is not kept."""

from __future__ import annotations

import html
import json
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.log import log_of
from loadgen.raw import Raw
from loadgen.targets import OpenAIChat
from loadgen.targets.secrets import redacted
from loadgen.timeline import Exchange, Timeline
from results.record import Outcome, Record

KEY = "sk-Zq9/x+Kw7=='\"\\TT8v N3&<é~_w"
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper": str.upper,
    "lower": str.lower,
    "url": quote,
    "url whole": lambda key: quote(key, safe=""),
    "url latin-1": lambda key: quote(key, encoding="latin-1"),
    "url lower": lambda key: quote(key).lower(),
    "url twice": lambda key: quote(quote(key)),
    "form": quote_plus,
    "json": json.dumps,
    "json in utf-8": lambda key: json.dumps(key, ensure_ascii=False),
    "json twice": lambda key: json.dumps(json.dumps(key)),
    "json of php": lambda key: json.dumps(key).replace("/", "\\/"),
    "json of go": lambda key: json.dumps(key).replace("&", "\\u0026").replace("<", "\\u003c"),
    "html": html.escape,
    "html twice": lambda key: html.escape(html.escape(key)),
    "html in decimals": lambda key: "".join(
        c if c.isalnum() and c.isascii() else f"&#{ord(c)};" for c in key
    ),
    "repr": repr,
    "repr of bytes": lambda key: repr(key.encode()),
    "base64": lambda key: b64encode(key.encode()).decode(),
    "base64 for a URL": lambda key: urlsafe_b64encode(key.encode()).decode().rstrip("="),
    "base64 of the header": lambda key: b64encode(b"Bearer " + key.encode()).decode(),
    "base64 of a pair": lambda key: b64encode(b"ab" + key.encode() + b"tail").decode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", [KEY, "abcdef0123456789", "a-b.c_d~e", "+/+/+/+/", "\\\\\\x\\\\\\"])
def test_a_key_is_found_in_every_form(form: str, key: str) -> None:
    """As servers, gateways and proxies write it back."""
    written = FORMS[form](key)
    text = redacted(f"the key {written} is wrong", key, "[K]")
    assert "[K]" in text
    assert written not in text
    assert key.lower() not in text.lower()


@given(st.text(st.characters(max_codepoint=255, min_codepoint=33), min_size=6), st.sampled_from(list(FORMS)))
def test_any_key_is_found_in_any_form(key: str, form: str) -> None:
    """No character of a header is special, but that ß has no capital letter."""
    written = FORMS[form](key)
    if form != "upper" or len(written) == len(key):
        assert "[K]" in redacted(written, key, "[K]")


@pytest.mark.parametrize("key", ["EMPTY", "none", "x"])
def test_a_key_that_is_a_word_is_looked_for_as_it_is_written(key: str) -> None:
    """Servers without keys are given such words, and their errors have them too."""
    said = f"the list is empty, none, {key[::-1]}.."
    assert redacted(said, key, "[K]") == said.replace(key, "[K]")
    assert redacted("unchanged", "", "[K]") == "unchanged"


@pytest.mark.parametrize("evil", ["\\", "%25", "%", "&amp;", "&", "\\&amp;", "zq9/x\\"])
def test_no_text_of_a_server_takes_long(evil: str) -> None:
    """Time grows with the length of the text alone, also where a key has many backslashes."""
    key = "zq9/x" + "\\" * 30 + "&%&%&%&%tt8vn3"
    begun = time.process_time()
    redacted(evil * 20_000 + "tt8vn3", key, "[K]")
    assert time.process_time() - begun < 2


def closed(payloads: list[Any], key_env: str) -> Exchange:
    reads = [f"data: {json.dumps(payload)}\n\n".encode() for payload in payloads] + [b"data: [DONE]\n\n"]
    raw = Raw(conn=0, sent=0, headers_at=0, status=200, headers={}, ending="eof")
    raw.reads = log_of(range(1, len(reads) + 1), [0] * len(reads), reads)
    timeline = Timeline(OpenAIChat("m", key_env=key_env))
    timeline.replay(raw, raw.users, 0)
    return timeline.close(Record(0, "chat", "window", Outcome.UNKNOWN, start=0), 0)


def test_a_key_as_a_finish_reason_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is kept in lower case."""
    monkeypatch.setenv("HR_TEST_KEY", KEY)
    delta = {"index": 0, "delta": {"content": quote(KEY)}, "finish_reason": f"no {KEY}"}
    exchange = closed([{"choices": [delta]}], "HR_TEST_KEY")
    assert (exchange.record.finish, exchange.text) == ("no [HR_TEST_KEY]", "[HR_TEST_KEY]")
