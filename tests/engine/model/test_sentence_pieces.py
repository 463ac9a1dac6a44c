"""Tokenizers of SentencePiece's kind, as Llama 2 and Mistral have: text grows byte by byte (ENGINE E37)."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers")

from engine.api.errors import ApiError  # noqa: E402
from engine.api.openai import Prompt  # noqa: E402
from engine.api.prompts import tokenise  # noqa: E402
from engine.api.stream import OutputText  # noqa: E402
from engine.model.hf_tokenizer import HfTokenizer  # noqa: E402

WORDS = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
TEXTS = st.text(alphabet="ab \n\u010f\u00a0\ud55c\U0001f336\u0301", max_size=24)


def backend(trims: bool):
    """What transformers makes of such a model, with and without a blank before the first word."""
    from tokenizers import AddedToken, decoders, models, normalizers

    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(
        models.BPE(vocabulary, [("\u2581", "a")], byte_fallback=True, unk_token="<unk>")
    )
    steps = [normalizers.Prepend("\u2581")] if trims else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    joined = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)] if trims else joined)
    made.add_special_tokens([AddedToken("<end>", normalized=False)])
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "trims"])
def kind(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    made = backend(request.param)
    made.save(str(folder / "tokenizer.json"))
    return HfTokenizer(folder), made


def grown(tokenizer, ids, stops=()):
    """The deltas of ids that come one by one."""
    output = OutputText(tokenizer, stops)
    return [*(output.push([token]).text for token in ids), output.finish().text]


def test_characters_of_several_bytes_come_whole(kind):
    """One byte a token: the library would make a broken character of each part, and of a whole character
    that a broken one follows."""
    tokenizer, _ = kind
    text = "a\ud55c\ud55c\U0001f336b"
    deltas = grown(tokenizer, tokenizer.encode(text))
    assert [delta for delta in deltas if delta] == list(text)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_deltas_join_to_what_the_library_says(kind, text):
    """Any text, token by token and at once, as the tokenizers library decodes it."""
    tokenizer, library = kind
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == library.decode(ids)
    assert "".join(grown(tokenizer, ids)) == library.decode(ids)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, len(WORDS)), max_size=30))
def test_deltas_of_any_tokens_join_to_their_text(kind, ids):
    """Random bytes too: what has been said never changes, and is what all of it decodes to."""
    tokenizer, _ = kind
    assert "".join(grown(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_stop_string_is_found_across_bytes(kind):
    """Cut off with what follows it, though every one of its bytes is a token."""
    tokenizer, _ = kind
    ids = tokenizer.encode("a\ud55c\U0001f336b")
    assert "".join(grown(tokenizer, ids, ["\ud55c\U0001f336"])) == "a"


def test_tokens_that_the_model_does_not_have_are_refused(kind, tmp_path):
    """A tokenizer may have more than the model has embeddings: as text and as ids such a prompt is a 400, and
    no step."""
    _, library = kind
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HfTokenizer(tmp_path, len(WORDS))
    assert tokenizer.vocabulary == len(WORDS)
    for prompt in (Prompt(text="a<end>b"), Prompt(ids=array("I", [len(WORDS)]))):
        with pytest.raises(ApiError, match=f"id {len(WORDS)} is not below {len(WORDS)}") as refused:
            tokenise(tokenizer, prompt)
        assert (refused.value.status, refused.value.param) == (400, "prompt")
    assert len(tokenise(tokenizer, Prompt(text="a b")))
