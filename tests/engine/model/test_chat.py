"""Chat templates: what they render, what they refuse, what the sandbox keeps in."""

from datetime import datetime

import pytest

from engine.model.chat import ChatTemplate, chatml, text_of

HELLO = [{"role": "user", "content": "hi"}]


def test_chatml_ends_with_the_open_turn_of_the_assistant():
    """Every turn is closed but the one to be generated."""
    assert chatml(HELLO) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_text_parts_are_joined_by_newlines():
    """OpenAI's list form of a content means the same text."""
    assert text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "a\nb"


@pytest.mark.parametrize(
    "content", [None, 3, [{"type": "image_url", "image_url": {}}], ["a"], [{"type": "text"}]]
)
def test_other_content_is_refused(content):
    """What is no text is named in a ValueError."""
    with pytest.raises(ValueError, match="content"):
        chatml([{"role": "user", "content": content}])


@pytest.mark.parametrize("role", [None, "", 1])
def test_a_message_needs_a_role(role):
    """A message without a role is refused."""
    with pytest.raises(ValueError, match="role"):
        chatml([{"role": role, "content": "x"}])


def test_a_template_sees_messages_tokens_and_its_functions():
    """The names that Hugging Face templates use are there."""
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}"
        "{{ m['content'] }}{% endfor %}{{ {'a': '<é>'} | tojson }}{{ strftime_now('%Y') }}"
        "{{ add_generation_prompt }}",
        {"bos_token": "<s>"},
        now=lambda: datetime(2001, 2, 3),
    )
    messages = [
        {"role": "skip", "content": "no"},
        {"role": "user", "content": [{"type": "text", "text": "yes"}]},
    ]
    assert template.render(messages) == '<s>yes{"a": "<é>"}2001True'


def test_a_template_may_refuse():
    """raise_exception ends in a ValueError with the template's own words."""
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(ValueError, match="roles must alternate"):
        template.render(HELLO)


def test_messages_that_break_a_template_are_refused():
    """Adding a missing content to text is the client's error, not the server's."""
    template = ChatTemplate("{{ 'a' + messages[0]['content'] }}", {})
    with pytest.raises(ValueError, match="refuses"):
        template.render([{"role": "user", "content": None}])


def test_a_template_cannot_reach_out_of_its_sandbox():
    """Attributes that lead to Python's internals are closed."""
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(ValueError, match="refuses"):
        template.render(HELLO)


def test_broken_jinja_is_named():
    """A template that does not parse fails when it is loaded."""
    with pytest.raises(ValueError, match="not valid Jinja"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].calls | tojson(indent=2) }}",
        "{{ messages[7].content }}",
        "{{ 1 // (messages | length - 1) }}",
        "{{ messages[0].calls.missing.more }}",
        "{{ range(10 ** 30) }}",
    ],
)
def test_whatever_a_template_stumbles_over_is_the_messages_fault(source):
    """Nested too deeply, too few of them, a division by none: each is a refusal."""
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="the chat template"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x", "calls": deep}])


def test_marks_of_training_are_no_text():
    """Templates may say what the assistant generates; a prompt has it without the marks."""
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    assert ChatTemplate(source, {}).render([*HELLO, *HELLO]).count(";") == 2
    with pytest.raises(ValueError, match="not valid Jinja"):
        ChatTemplate("{% generation %}", {})


def test_json_as_transformers_writes_it():
    """The arguments of its ``tojson``, by name and in its order."""
    template = ChatTemplate(
        "{{ {'b': 'é', 'a': 1} | tojson(separators=(',', ':'), sort_keys=true) }}"
        "{{ 'é' | tojson(true) }}{{ {'a': 1} | tojson(indent=1) }}",
        {},
    )
    assert template.render(HELLO) == '{"a":1,"b":"é"}"\\u00e9"{\n "a": 1\n}'
