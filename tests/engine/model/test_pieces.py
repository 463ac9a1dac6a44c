"""The bytes of single tokens, which logprobs show and schemas are followed by."""

import json
from array import array

import pytest

from engine.model.byte_tokenizer import ByteTokenizer
from engine.model.grammar import Matchers, Schemas
from engine.model.hf_tokenizer import HfTokenizer
from engine.model.pull import is_pulled, model_folder
from engine.model.schema_text import SchemaError
from engine.model.words import WordsTokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two\n\ttabs ",
    "ď🌶한 naïve",
    "emoji 👩‍👩 ok",
    "a\u00a0b\u2003c",
    "x<end>y",
]


@pytest.fixture
def byte_level(tmp_path):
    """A byte-level BPE without merges and a special token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", normalized=False)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return HfTokenizer(tmp_path)


@pytest.fixture
def sentence_pieces(tmp_path):
    """SentencePiece's way: words that begin with a block, bytes in angles where there is no word."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    vocabulary = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens([AddedToken("<end>", normalized=False)])
    backend.save(str(tmp_path / "tokenizer.json"))
    return HfTokenizer(tmp_path)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte_level", "sentence_pieces", "bytes", "words"])
def test_pieces_join_to_the_text(kind, text, request):
    """Each token gives its bytes, parts of characters and special tokens included."""
    own = {"bytes": ByteTokenizer, "words": WordsTokenizer}
    tokenizer = own[kind]() if kind in own else request.getfixturevalue(kind)
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.piece(token) for token in ids).decode() == text


def test_special_tokens_are_known(byte_level):
    """They have a name and stand for no text."""
    for tokenizer in (byte_level, ByteTokenizer(), WordsTokenizer()):
        assert tokenizer.eos_ids <= tokenizer.special_ids
        for token in tokenizer.special_ids:
            assert tokenizer.decode([token]) == ""
            assert tokenizer.piece(token).startswith(b"<")


def test_ids_without_a_token_are_nothing(byte_level):
    """Vocabularies may have holes."""
    assert byte_level.piece(5000) == b""


@pytest.mark.parametrize("kind", ["byte_level", "sentence_pieces", "bytes"])
def test_a_schema_is_followed_by_pieces(kind, request, monkeypatch):
    """Only tokens that begin with what may come are let through; a special token is no text."""
    pytest.importorskip("llguidance")
    tokenizer = ByteTokenizer() if kind == "bytes" else request.getfixturevalue(kind)
    if not tokenizer.eos_ids:
        with pytest.raises(SchemaError, match="no end-of-sequence"):
            Schemas(tokenizer).check('{"const": "a"}')
        monkeypatch.setattr(tokenizer, "eos_ids", frozenset(tokenizer.special_ids))
    matchers = Matchers(Schemas(tokenizer))
    everything = range(tokenizer.vocabulary)
    output = array("I")
    for text in (b'"', b"a", b'"'):
        allowed = matchers.allowed(1, 0, '{"const": "a"}', output)
        let_through = [i for i in everything if allowed[i]]
        assert [tokenizer.piece(i) for i in let_through] == [text], "of tokens for the same bytes the last"
        output.append(let_through[0])
    allowed = matchers.allowed(1, 0, '{"const": "a"}', output)
    assert {i for i in everything if allowed[i]} == tokenizer.eos_ids
    inside = matchers.allowed(2, 0, '{"type": "string"}', output[:1])
    assert not any(inside[i] for i in tokenizer.special_ids), "their names are no text"
    assert sum(inside) > 3


@pytest.mark.model
def test_pieces_of_smollm2(tmp_path):
    """Every token of a real vocabulary decodes to its piece, or is a part of a character."""
    folder = model_folder("smollm2-135m")
    if not is_pulled(folder):
        pytest.skip("smollm2-135m is not pulled: run bench model pull smollm2-135m")
    tokenizer = HfTokenizer(folder)
    for token in set(range(tokenizer.vocabulary)) - tokenizer.special_ids:
        assert tokenizer.piece(token).decode(errors="replace") == tokenizer.decode([token])
