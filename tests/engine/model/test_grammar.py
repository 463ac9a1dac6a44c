"""Outputs that meet a schema, whatever the model would rather say."""

import json
from array import array
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from engine.model.byte_tokenizer import ByteTokenizer  # noqa: E402
from engine.model.grammar import ANY_OBJECT, DeadEnd, Matchers, Schemas  # noqa: E402
from engine.model.sampler import Sampler  # noqa: E402
from engine.model.schema_text import MAX_BYTES, SchemaError  # noqa: E402
from engine.model.words import WordsTokenizer  # noqa: E402
from engine.request import Sampling  # noqa: E402
from engine.runner.base import Row  # noqa: E402

pytestmark = pytest.mark.torch
BYTES = ByteTokenizer()
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
HOW = Sampling(temperature=1.5, schema=json.dumps(PERSON))
PROMPT = array("I", [1, 2, 3])


@pytest.fixture(scope="module")
def schemas():
    return Schemas(BYTES)


def logits(seed: int, step: int):
    return torch.randn(1, BYTES.vocabulary, generator=torch.Generator().manual_seed(seed * 1000 + step)) * 2


def row(how: Sampling, output: list[int], id: int = 1, choice: int = 0, forks: int = 0) -> Row:
    known = array("I", [*PROMPT, *output])
    last = len(known) - 1
    return Row(id, last, known[last:], (1,), True, how, len(output), choice, forks, None, len(PROMPT), known)


def generate(
    sampler: Sampler, how: Sampling, seed: int, most: int = 300, output=(), id: int = 1
) -> list[int]:
    """What a model of pure noise says from ``output`` on, until it ends."""
    output = list(output)
    while len(output) < most:
        (drawn,) = sampler.draw(logits(seed, len(output)), [row(how, output, id)])
        assert drawn.error is None
        output.append(drawn.tokens[0])
        if output[-1] in BYTES.eos_ids:
            break
    return output


@pytest.mark.parametrize("seed", range(8))
def test_noise_becomes_what_the_schema_says(schemas, seed):
    """Every output ends by itself with end-of-sequence and is a person."""
    sampler = Sampler(BYTES.eos_ids, Matchers(schemas))
    *text, end = generate(sampler, replace(HOW, seed=seed), seed)
    assert end in BYTES.eos_ids
    person = json.loads(BYTES.decode(text))
    assert list(person) == ["name", "age", "likes"]
    assert len(person["name"]) <= 8
    assert 0 <= person["age"] <= 99
    assert set(person["likes"]) <= {"tea", "rain"}


def test_without_a_schema_it_is_noise(schemas):
    """The same draws, unconstrained, are no JSON: the test above could fail."""
    free = generate(Sampler(BYTES.eos_ids), replace(HOW, schema=None, seed=1), 1, most=60)
    with pytest.raises(ValueError, match=r".*"):
        json.loads(BYTES.decode(free))


def test_json_mode_gives_an_object(schemas):
    """Greedy, with white space bounded: some object begins, and all that follows can be completed."""
    sampler = Sampler(BYTES.eos_ids, Matchers(schemas))
    for seed in range(4):
        text = BYTES.decode(generate(sampler, Sampling(schema=ANY_OBJECT), seed, most=80, id=seed))
        assert text.startswith("{")


def test_a_state_that_is_gone_is_made_anew(schemas):
    """Preempted, resumed elsewhere, or interleaved with others: the output is the same (ENGINE E6)."""
    whole = generate(Sampler(BYTES.eos_ids, Matchers(schemas)), replace(HOW, seed=3), 3)
    for cut in (1, 7, len(whole) - 1):
        elsewhere = Sampler(BYTES.eos_ids, Matchers(schemas))
        assert generate(elsewhere, replace(HOW, seed=3), 3, output=whole[:cut]) == whole
    shared = Sampler(BYTES.eos_ids, Matchers(schemas))
    generate(shared, replace(HOW, seed=4), 4)
    assert generate(shared, replace(HOW, seed=3), 3) == whole, "another output under the same id"


def test_states_are_bounded(schemas, monkeypatch):
    """More choices than states cost time, not memory, and change nothing."""
    monkeypatch.setattr("engine.model.grammar.STATES", 1)
    matchers = Matchers(schemas)
    sampler = Sampler(BYTES.eos_ids, matchers)
    outputs = {id: generate(Sampler(BYTES.eos_ids, Matchers(schemas)), HOW, id, 25, id=id) for id in (1, 2)}
    mixed: dict[int, list[int]] = {1: [], 2: []}
    for step in range(25):
        for id, output in mixed.items():
            output.append(sampler.draw(logits(id, step), [row(HOW, output, id)])[0].tokens[0])
    assert mixed == outputs
    assert len(matchers._states) == 1


def test_choices_go_their_own_ways(schemas):
    """Forks begin in the same state and part; each stays within the schema."""
    sampler = Sampler(BYTES.eos_ids, Matchers(schemas))
    (first,) = sampler.draw(logits(5, 0), [row(HOW, [], forks=2)])
    outputs = [[token] for token in first.tokens]
    for step in range(1, 300):
        alive = [c for c, output in enumerate(outputs) if output[-1] not in BYTES.eos_ids]
        rows = [row(HOW, outputs[choice], choice=choice) for choice in alive]
        if not rows:
            break
        drawn = sampler.draw(logits(5, step).expand(len(rows), -1), rows)
        for choice, each in zip(alive, drawn, strict=True):
            outputs[choice].append(each.tokens[0])
    texts = [BYTES.decode(output) for output in outputs]
    assert len(set(texts)) == 3
    assert all(list(json.loads(text)) == ["name", "age", "likes"] for text in texts)


def test_a_dead_end_fails_one_row_with_words(schemas):
    """A row whose output has left its schema says so; the row beside it draws on."""
    sampler = Sampler(BYTES.eos_ids, Matchers(schemas))
    good, bad = sampler.draw(logits(1, 0).expand(2, -1), [row(HOW, [], 1), row(HOW, [ord("x")], 2)])
    assert good.tokens
    assert (bad.tokens, bad.logprobs) == ((), ())
    assert "left the schema" in str(bad.error)
    with pytest.raises(DeadEnd):
        Matchers(schemas).allowed(1, 0, '{"type": 7}', array("I"))


def test_the_end_of_the_schema_comes_before_min_tokens(schemas):
    """Where nothing but the end is left, the output ends."""
    how = Sampling(schema='{"const": 7}', min_tokens=50)
    assert generate(Sampler(BYTES.eos_ids, Matchers(schemas)), how, 0) == [ord("7"), *BYTES.eos_ids]


LINKS = {f"d{i}": {"pattern": f".*{i}.{{1,50}}", "$ref": f"#/$defs/d{i + 1}"} for i in range(30)}
CHAIN = {"$ref": "#/$defs/d0", "$defs": {**LINKS, "d30": {"type": "string"}}}
"""Merging regular expressions takes the library a time that no limit of its own bounds."""
BOUNDS = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
ENDLESS = ("1e400", "-1e400", "Infinity", "NaN")
"""What Python's JSON makes numbers of that JSON does not have."""
DEEP = '{"items":' * 100 + "{}" + "}" * 100


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "no JSON"),
        ("[]", "must be a JSON object"),
        ("\ud800", "no JSON"),
        ('{"const": "\ud800"}', "."),
        ('{"type": "strin"}', "strin"),
        ('{"type": "string", "minLength": 5, "maxLength": 2}', "."),
        ('{"enum": []}', "."),
        ('{"allOf": [{"type": "string"}, {"type": "number"}]}', "."),
        ('{"type": "string", "pattern": "(?=a)b"}', "."),
        ('{"type": "string", "pattern": "("}', "."),
        ('{"type": "string", "format": "no-such"}', "no-such"),
        ('{"$ref": "#"}', "."),
        ('{"$ref": "http://elsewhere/x"}', "."),
        ('{"not": {}}', "."),
        ('{"type": "array", "items": {"$ref": "#"}, "minItems": 1}', "without end"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}', "without end"),
        ('{"allOf": [{"$ref": "#"}, {"type": "null"}]}', "without end"),
        ('{"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}], "$defs": {"a": {"$ref": "#"}}}', "without end"),
        (json.dumps({"allOf": [{"pattern": f".*{i}.{{1,50}}"} for i in range(30)]}), "merges .* 30 patterns"),
        (json.dumps(CHAIN), "merges .* 30 patterns"),
        ('{"multipleOf": 463902}', "463902 .* above 5000"),
        ('{"multipleOf": 0.463902}', "463902 .* above 5000"),
        ('{"allOf": [{"multipleOf": 83}, {"multipleOf": 89}]}', "83, 89 .* multiplied"),
        (json.dumps({"properties": {f"p{i}": {"multipleOf": 700} for i in range(900)}}), "above 5000"),
        ('{"multipleOf": "x"}', "."),
        *((f'{{"type": "number", "{key}": {value}}}', ".") for key in BOUNDS for value in ENDLESS),
        (DEEP, "64 levels"),
        ('{"x":"' + "x" * MAX_BYTES + '"}', f"at most {MAX_BYTES}"),
        ('{"type": "string", "maxLength": 4000000000000}', "."),
    ],
)
def test_a_schema_that_cannot_be_met_is_refused_with_the_reason(schemas, schema, why):
    """Before anything runs, quickly, and the next schema is taken as ever."""
    with pytest.raises(SchemaError, match=why):
        schemas.check(schema)
    assert not schemas.knows(schema)
    schemas.check('{"type": "boolean"}')


LEFT = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"left": LEFT, "k": {"enum": [1]}},
            "required": ["left", "k"],
            "additionalProperties": False,
        }
    },
}
FORM = {
    "type": "object",
    "properties": {f"f{i}": {"type": "string", "pattern": "^[a-z]{1,9}$"} for i in range(30)},
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [TREE, FORM, {"type": "array", "items": {"$ref": "#"}}, {}])
def test_what_looks_like_it_and_can_be_met_is_taken(schemas, schema):
    """Recursion that may end, many patterns side by side, anything at all."""
    schemas.check(json.dumps(schema))


KINDS = {
    "any of": {"anyOf": [{"type": "integer", "minimum": -5}, {"enum": ["a", None]}, {"const": {"k": [1]}}]},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"type": "null"}],
        "items": False,
        "minItems": 2,
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$", "maxLength": 9},
    "date": {"type": "string", "format": "date"},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "nested": {
        "type": "object",
        "properties": {"p": PERSON},
        "required": ["p"],
        "additionalProperties": False,
    },
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"multipleOf": 7, "maximum": 90}]},
    "tree": TREE,
    "types": {"type": ["boolean", "null", "integer"], "maximum": 10},
}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_valid_to_another_library(schemas, kind):
    """What noise says within each kind of schema is what a validator accepts, or was cut off."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(KINDS[kind])
    how = Sampling(temperature=1.0, schema=json.dumps(KINDS[kind]))
    whole = 0
    for seed in range(4):
        output = generate(Sampler(BYTES.eos_ids, Matchers(schemas)), replace(how, seed=seed), seed, 200)
        if output[-1] in BYTES.eos_ids:
            validator.validate(json.loads(BYTES.decode(output)))
            whole += 1
    assert whole, "every one was cut off"


NUMBERS = st.integers(-5, 20) | st.floats(-10, 10) | st.sampled_from([10**6, 10**30, 1e300])
PATTERNS = st.sampled_from(["a", "^[a-c]{1,3}$", "(a|b)*c", "(?i)x", "", "[^\n]*", "(?=a)", "("])


def parts(inner):
    """Schemas of keywords that fit together or not."""
    names = st.sampled_from(["object", "array", "string", "number", "integer", "null", "x"])
    counts = ["minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "multipleOf"]
    return st.fixed_dictionaries(
        {},
        optional={
            "type": names | st.lists(names, max_size=2),
            "properties": st.dictionaries(st.sampled_from(["a", "é", "$ref"]), inner, max_size=2),
            "required": st.lists(st.sampled_from(["a", "z"]), max_size=2),
            "additionalProperties": inner | st.booleans(),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "items": inner | st.booleans(),
            "pattern": PATTERNS,
            "format": st.sampled_from(["date", "email", "uuid", "no-such"]),
            "enum": st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=2),
            "not": inner,
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/nope", "x"]),
            "$defs": st.fixed_dictionaries({"a": inner}),
            **{name: st.lists(inner, max_size=2) for name in ("anyOf", "oneOf", "allOf", "prefixItems")},
            **dict.fromkeys(counts, NUMBERS),
        },
    )


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.recursive(st.sampled_from([{}, {"type": "string"}, {"$ref": "#"}, {"const": 1}]), parts, max_leaves=5)
)
def test_any_schema_is_followed_or_refused(schemas, schema):
    """Compiled, or refused with a reason, whatever a client sends; what is compiled has a first token."""
    try:
        schemas.check(json.dumps(schema))
    except SchemaError as error:
        reason = str(error)
        assert 0 < len(reason) < 400
    else:
        assert Matchers(schemas).allowed(1, 0, json.dumps(schema), array("I")).any()


def test_a_tokenizer_of_words_meets_no_schema():
    """The simulated model says words only; that is said, not tried."""
    with pytest.raises(SchemaError, match="vocabulary of 2147483648"):
        Schemas(WordsTokenizer()).check(ANY_OBJECT)
