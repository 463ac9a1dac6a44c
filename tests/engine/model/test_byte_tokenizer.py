"""Bytes as tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.byte_tokenizer import SPECIALS, ByteTokenizer

TOKENIZER = ByteTokenizer()
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_text_survives(text):
    """decode(encode(x)) is x, save for the special tokens in it."""
    plain = text
    for special in SPECIALS:
        plain = plain.replace(special, "")
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == plain


@given(TEXT)
def test_spans_cover_the_text(text):
    """Every token has the span of its character, and together they cover the text in order."""
    ids, spans = TOKENIZER.encode_with_offsets(text)
    assert ids == TOKENIZER.encode(text)
    covered = "".join(text[start:end] for start, end in dict.fromkeys(spans))
    assert covered == text


def test_special_tokens_are_recognised():
    """A special token in the text is one id, and a chat is made of them."""
    assert TOKENIZER.encode("a<|im_end|>b") == [97, SPECIALS["<|im_end|>"], 98]
    assert TOKENIZER.encode(TOKENIZER.render_chat([{"role": "user", "content": "hi"}]))[0] == 257
    assert frozenset({258}) == TOKENIZER.eos_ids


def test_incomplete_characters_show_as_replacement():
    """Half a character at the end gives U+FFFD."""
    assert TOKENIZER.decode(list("aé".encode())[:-1]) == "a\ufffd"


def test_lone_surrogates_are_a_value_error():
    """Text without a UTF-8 form is refused, not mangled."""
    with pytest.raises(ValueError, match="surrogates"):
        TOKENIZER.encode("\ud800")
