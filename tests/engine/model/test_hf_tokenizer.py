"""Tokenizers in Hugging Face's format."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers")

from engine.model.hf_tokenizer import HfTokenizer  # noqa: E402
from engine.model.pull import is_pulled, model_folder  # noqa: E402

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "It's the user's; they'll've gone. DON'T",
    "def f(x):\n\treturn x ** 2  # square\n\n\nprint(f(3.14))",
    "tabs\t\tand\r\nline ends\n\n",
    "naïve café Ünïcödé ﬁ ½ ² Ⅷ",
    "日本語のテキスト 中文 한국어 עברית العربية हिन्दी ไทย",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 ok",
    "a\u00a0b\u2003c\u200bd",
    "1 22 333 4444 v1.2.3 2026-11-29T14:33:00Z x1y2",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x",
    "not special: <|im_start |> < |im_end|>",
    "$$ \\frac{a}{b} ~~~ ``` @#%^&*()[]{}|;:\"',.<>/?",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "x" * 300 + " " * 50 + "y",
]


@pytest.fixture
def folder(tmp_path):
    """A byte-level BPE without merges, a special token, and the settings beside it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.add_special_tokens([AddedToken("<end>", normalized=False)])
    backend.enable_truncation(4)
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "eos_token": {"content": "<end>"},
        "chat_template": "{{ messages[0].content }}{{ eos_token }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_and_spans_cover_it(folder, text):
    """Long texts are not truncated, and no character is outside all spans, trimmed spaces included."""
    tokenizer = HfTokenizer(folder)
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    end = 0
    for start, stop in spans:
        assert start <= end
        end = max(end, stop)
    assert end == len(text)


def test_settings_are_read(folder):
    """End tokens come from both files, the template from the settings or, rather, from its own file."""
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    tokenizer = HfTokenizer(folder)
    assert tokenizer.eos_ids == {7, 8, 256}
    assert tokenizer.vocabulary == 257
    message = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(message) == "hi<end>"
    assert tokenizer.encode("a<end>b")[1] == 256
    assert tokenizer.decode([256]) == ""
    (folder / "chat_template.jinja").write_text("other")
    other = HfTokenizer(folder)
    assert other.render_chat(message) == "other"


def test_the_digest_changes_with_the_template(folder):
    """What changes prompts changes the identity; the place of the folder does not."""
    before = HfTokenizer(folder).digest
    assert HfTokenizer(folder).digest == before
    (folder / "chat_template.jinja").write_text("other")
    assert HfTokenizer(folder).digest != before


def test_named_templates_use_the_default(folder):
    """A list of templates means its entry named default."""
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert HfTokenizer(folder).render_chat([{"role": "user", "content": ""}]) == "d"


def test_no_template_is_said_when_a_chat_comes(folder):
    """A base model serves completions; a chat is refused with the reason."""
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        HfTokenizer(folder).render_chat([{"role": "user", "content": "hi"}])


def test_broken_folders_are_named(folder, tmp_path_factory):
    """Missing file, rubbish in it, an end token that is not there."""
    with pytest.raises(ValueError, match=r"tokenizer\.json: missing"):
        HfTokenizer(tmp_path_factory.mktemp("empty"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<nope>"}')
    with pytest.raises(ValueError, match="eos_token '<nope>' is not in"):
        HfTokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer"):
        HfTokenizer(folder)


@pytest.mark.parametrize("value", [True, -1, 1.5, "<end>", [1, -1], ["a"], [None], [[1]], {"id": 1}])
def test_end_ids_that_are_none_are_named(folder, value):
    """A negative one would be some other token's from behind."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id is .* neither an id nor"):
        HfTokenizer(folder)


def test_a_template_that_is_no_text_is_named(folder):
    """The file stands in the message."""
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: cannot be read"):
        HfTokenizer(folder)


@pytest.fixture(scope="module")
def pulled():
    folder = model_folder("smollm2-135m")
    if not is_pulled(folder):
        pytest.skip("smollm2-135m is not pulled: run bench model pull smollm2-135m")
    return folder


@pytest.mark.model
@pytest.mark.torch
def test_smollm2_gives_the_ids_of_transformers(pulled):
    """transformers' tokenizer from the same folder agrees on ids, text and chat prompts."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(pulled)
    ours = HfTokenizer(pulled)
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    for messages in (
        [{"role": "user", "content": "What is it?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
    ):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(messages) == expected
    assert ours.eos_ids == {theirs.eos_token_id} == {2}


@pytest.mark.model
def test_smollm2_parts_digits_off_before_spaces_are_grouped(pulled):
    """As the model was trained (and llama.cpp's smollm type does): two line ends before a digit are one
    token. A byte-level pre-tokenizer alone, which transformers assumes for a GGUF, would give two."""
    ours = HfTokenizer(pulled)
    assert len(ours.encode("\n\n1")) == 2
    assert len(ours.encode("2026")) == 4


@pytest.mark.model
def test_common_words_are_about_one_token_each(pulled):
    """A prompt of plain English words has about as many tokens as words."""
    words = "the people of the old town went down to the river every morning before work to look for stones"
    assert len(HfTokenizer(pulled).encode(words)) <= 1.1 * len(words.split())
