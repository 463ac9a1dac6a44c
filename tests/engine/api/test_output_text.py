from hypothesis import given
from hypothesis import strategies as st

from engine.api.stream import OutputText, StopStrings
from engine.model.byte_tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
TEXTS = st.text(alphabet="abc ď🌶한\ufffd", max_size=40)
PLAIN = st.text(alphabet="abc ď🌶한", max_size=40)  # a real U+FFFD is held like a broken character
STOPS = st.lists(st.text(alphabet="abcď", min_size=1, max_size=4), max_size=3)


def cut(items: list[int], sizes: list[int]) -> list[list[int]]:
    batches, at = [], 0
    for size in [*sizes, len(items)]:
        batches.append(items[at : at + size])
        at += size
    return batches


def run(ids: list[int], stops: list[str], sizes: list[int]) -> tuple[list[str], list[int], OutputText]:
    output = OutputText(BYTES, stops)
    deltas = [output.push(batch) for batch in cut(ids, sizes)]
    deltas.append(output.finish())
    return [delta.text for delta in deltas], [i for delta in deltas for i in delta.ids], output


def visible(text: str, stops: list[str]) -> str:
    """The rule itself: read on until some stop is complete, cut it off."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


def test_characters_come_whole():
    """One byte a token: deltas concatenate to the text and none ends inside a character."""
    text = "ď🌶한"
    ids = BYTES.encode(text)
    deltas, out, _ = run(ids, [], [1] * len(ids))
    assert [delta for delta in deltas if delta] == list(text)
    assert out == ids


def test_the_rest_of_a_prompts_character_is_not_prompt_text():
    """Output that begins with stray bytes shows a replacement, never the prompt's character."""
    *_, last = BYTES.encode("한")
    deltas, _, _ = run([last, *BYTES.encode("ab")], [], [1, 1, 1])
    assert "".join(deltas) == "\ufffdab"


def test_text_is_held_only_while_it_may_become_a_stop():
    """The streamed text stops before what may be a stop string and goes on when it is none."""
    stops = ["own fox"]
    output = OutputText(BYTES, stops)
    assert output.push(BYTES.encode("The quick brown fo")).text == "The quick br"
    assert output.push(BYTES.encode("x jumps")).text == ""
    assert output.stopped
    assert output.generated == len("The quick br")
    other = OutputText(BYTES, stops)
    assert other.push(BYTES.encode("The quick brown f")).text == "The quick br"
    assert other.push(BYTES.encode("i")).text == "own fi"
    ending = OutputText(BYTES, stops)
    ending.push(BYTES.encode("brown f"))
    assert ending.finish().text == "own f"
    assert ending.generated == len("brown f")


def test_an_unfinished_character_is_flushed_at_the_end():
    """Ids that end inside a character end in a replacement, as decoding them at once does."""
    ids = BYTES.encode("a한")[:-1]
    deltas, out, _ = run(ids, [], [1] * len(ids))
    assert "".join(deltas) == BYTES.decode(ids)
    assert out == ids


@given(TEXTS, st.lists(st.integers(1, 5)))
def test_deltas_concatenate_to_the_text_for_every_chunking(text, sizes):
    """Any text, any batches: the deltas join to the text (E37)."""
    ids = BYTES.encode(text)
    deltas, out, _ = run(ids, [], sizes)
    assert "".join(deltas) == text
    assert out == ids


@given(st.binary(max_size=60), st.lists(st.integers(1, 5)))
def test_any_bytes_give_what_decoding_at_once_gives(data, sizes):
    """Invalid UTF-8 included."""
    deltas, out, _ = run(list(data), [], sizes)
    assert "".join(deltas) == BYTES.decode(list(data))
    assert out == list(data)


@given(PLAIN, STOPS, st.lists(st.integers(1, 5)))
def test_the_first_completed_stop_wins_for_every_chunking(text, stops, sizes):
    """Text, ids and usage are those of reading one character at a time (E38)."""
    deltas, out, output = run(BYTES.encode(text), stops, sizes)
    shown = visible(text, stops)
    assert "".join(deltas) == shown
    assert output.stopped == (shown != text)
    assert out == BYTES.encode(shown)
    assert output.generated == len(out)


@given(TEXTS, STOPS, st.lists(st.integers(1, 6)))
def test_stop_strings_hold_back_no_more_than_needed(text, stops, sizes):
    """What is held is always a proper prefix of some stop."""
    finder, at = StopStrings(stops), 0
    shown = ""
    for size in [*sizes, len(text)]:
        shown += finder.push(text[at : at + size])
        at += size
        if finder.stopped:
            break
        held = text[len(shown) : at]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
