"""Words as tokens."""

from hypothesis import given
from hypothesis import strategies as st

from engine.model.words import GENERATED, HASHED, SPECIALS, VOCABULARY, WordsTokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PROSE = st.lists(st.sampled_from(["the", "quick", "river", "a", "stone", "went"]), min_size=1, max_size=40)


@given(TEXT)
def test_text_survives(text):
    """decode(encode(x)) is x, save for the special tokens in it."""
    tokenizer = WordsTokenizer()
    plain = text
    for special in SPECIALS:
        plain = plain.replace(special, "")
    assert tokenizer.decode(tokenizer.encode(text)) == plain


@given(PROSE)
def test_one_word_is_one_token(words):
    """n words parted by spaces are n tokens, at the start of the text and after a line end too."""
    tokenizer = WordsTokenizer()
    assert len(tokenizer.encode(" ".join(words))) == len(words)
    assert len(tokenizer.encode("x\n" + " ".join(words))) == len(words) + 2


@given(TEXT)
def test_spans_cover_the_text(text):
    """Spans are consecutive and cover everything."""
    ids, spans = WordsTokenizer().encode_with_offsets(text)
    assert len(ids) == len(spans)
    assert "".join(text[start:end] for start, end in spans) == text


def test_all_ids_of_the_simulated_vocabulary_are_words():
    """What a simulated runner generates can be read, and reads back as the same ids in a next turn."""
    tokenizer = WordsTokenizer()
    ids = list(range(GENERATED))
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids
    turn = tokenizer.render_chat([{"role": "assistant", "content": text}])
    encoded = tokenizer.encode(turn)
    assert encoded[3 : 3 + GENERATED] == ids


def test_ids_are_stable_and_in_range():
    """Another process gives the same ids; none falls among generated words or special tokens."""
    ids = WordsTokenizer().encode("hello world")
    assert ids == WordsTokenizer().encode("hello world")
    assert all(HASHED <= i < VOCABULARY for i in ids)
    assert ids == [918610604, 275834540]


def test_a_turn_costs_five_tokens_and_the_prompt_three():
    """The chat template adds little to the words of a message."""
    tokenizer = WordsTokenizer()
    prompt = tokenizer.render_chat([{"role": "user", "content": "one two"}])
    assert len(tokenizer.encode(prompt)) == 2 + 5 + 3


def test_memory_of_other_words_is_bounded():
    """Only the newest pieces can be decoded; ids stay the same all the same."""
    tokenizer = WordsTokenizer(remembered=2)
    first = tokenizer.encode("one")
    assert tokenizer.encode("one two three")[0] == first[0]
    tokenizer.encode("two three")
    assert tokenizer.decode(first) == "\ufffd"
    assert len(tokenizer._hashed) == len(tokenizer._pieces) == 2
