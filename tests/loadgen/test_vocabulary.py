"""Words for a given tokenizer: prompts of exactly the tokens asked for, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from loadgen.text import TextMaker
from loadgen.vocabulary import LEAST_PIECES, MOST_PIECES, USUAL, vocabulary_of
from loadgen.words import WORDS

CORPUS = [" ".join(WORDS), *WORDS] * 40


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: spaces belong to the word after them; a special token in front."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=3000, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
        ),
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def sentence_pieces() -> Tokenizer:
    """As T5 and older Llamas: a mark stands for the space, also before the first word."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=1000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    return made


def word_pieces() -> Tokenizer:
    """As BERT: no spaces at all, letters lowered."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["[UNK]"], show_progress=False),
    )
    return made


def single_bytes() -> Tokenizer:
    """Nothing was merged: a byte is a token, and so is each space."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["a"], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)
    )
    return made


def knows_no_word() -> Tokenizer:
    """Every word is the same unknown token: prompts of different keys would be one prompt."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "zzz": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def runs_words_together() -> Tokenizer:
    """Trained across spaces: a word's tokens depend on the words beside it."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=3000, special_tokens=["<unk>"], show_progress=False)
    )
    return made


MAKERS = [byte_level, sentence_pieces, word_pieces, single_bytes]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizers") / f"{request.param.__name__}.json"
    request.param().save(str(path))
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.text("abc/", max_size=5), st.integers(1, 2000), st.booleans(), st.none() | st.floats(0, 1e6))
def test_a_prompt_has_exactly_the_tokens_asked_for(
    tokenizer: Path, key: str, n: int, cold: bool, stamp: float | None
) -> None:
    """By the tokenizer itself, with a nonce and a slipped clock too; a clock needs room for its tokens."""
    maker = TextMaker.made_for("word", str(tokenizer))
    stamp = stamp if n >= 60 else None
    text = maker.text(key, n, stamp=stamp, stamp_at=n // 2, nonce="n" if cold else "")
    made = Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False)
    assert len(made.ids) == n


def test_pieces_are_single_tokens_and_enough_of_them(tokenizer: Path) -> None:
    """Our own words where the vocabulary has them; the list is made once a file."""
    found = vocabulary_of(tokenizer)
    assert LEAST_PIECES <= len(found.pieces) <= MOST_PIECES
    assert vocabulary_of(str(tokenizer)) is found
    assert len(set(found.pieces)) == len(found.pieces)
    assert found.between in (" ", "")
    assert len(found.pieces) ** found.nonce >= 2**32


@pytest.mark.parametrize("make", [knows_no_word, runs_words_together])
def test_a_tokenizer_that_cannot_make_exact_text_is_refused(make: type[Tokenizer], tmp_path: Path) -> None:
    """With the file, the reason and the way out, before anything is sent."""
    path = tmp_path / "tokenizer.json"
    make().save(str(path))
    with pytest.raises(ValueError, match=r"tokenizer\.json: prompts of an exact length cannot be made"):
        vocabulary_of(path)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    """A missing file and another format, each by its name."""
    with pytest.raises(ValueError, match=r"nowhere\.json: cannot be read: No such file"):
        vocabulary_of(tmp_path / "nowhere.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json: not a tokenizer"):
        vocabulary_of(tmp_path / "other.json")


def test_without_a_tokenizer_words_are_the_usual_ones() -> None:
    """One byte of the key's stream chooses a word, without favour."""
    assert len(USUAL.pieces) == len(set(USUAL.table)) == MOST_PIECES
    assert TextMaker.made_for("byte", None) == TextMaker("byte")
