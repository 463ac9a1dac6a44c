"""Schemas in which very much may come next: followed to the end, or refused before anything runs."""

import json
from array import array
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from engine.model.byte_tokenizer import ByteTokenizer  # noqa: E402
from engine.model.grammar import Matchers, Schemas  # noqa: E402
from engine.model.sampler import Sampler  # noqa: E402
from engine.model.schema_text import MAX_OPTIONAL, SchemaError  # noqa: E402
from engine.request import Sampling  # noqa: E402
from engine.runner.base import Row  # noqa: E402

pytestmark = pytest.mark.torch
BYTES = ByteTokenizer()
dump = partial(json.dumps, separators=(",", ":"))


@pytest.fixture(scope="module")
def schemas():
    return Schemas(BYTES)


def form(count: int, prefix: str = "p", required: int = 0) -> dict:
    names = [f"{prefix}{i}" for i in range(count)]
    return {"type": "object", "properties": {name: {} for name in names}, "required": names[:required]}


def below(schema: dict) -> dict:
    return {"type": "object", "properties": {"x": schema}}


MERGED = {"allOf": [{"anyOf": [form(200, f"{part}{i}_") for i in range(3)]} for part in "ab"]}
SHARED = {f"d{i}": form(500, f"{i}_") for i in range(6)}
CHOICE = {"anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(6)]}


@pytest.mark.parametrize("count", [400, 500, 1_500, MAX_OPTIONAL])
@pytest.mark.parametrize("place", ["root", "defs"])
def test_many_optional_properties_are_followed(schemas, count, place):
    """From the first to the last property of the object: every byte of it is allowed."""
    schema = dump(form(count) if place == "root" else {"$ref": "#/$defs/a", "$defs": {"a": form(count)}})
    schemas.check(schema)
    text = BYTES.encode(dump({f"p{i}": None for i in (0, count // 2, count - 1)}))
    matchers = Matchers(schemas)
    for index, token in enumerate([*text, *BYTES.eos_ids]):
        assert matchers.allowed(1, 0, schema, array("I", text[:index]))[token]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (form(MAX_OPTIONAL + 1), f"{MAX_OPTIONAL + 1} optional properties, at most {MAX_OPTIONAL}"),
        (below(form(MAX_OPTIONAL + 1)), f"{MAX_OPTIONAL + 1} optional properties"),
        (MERGED, "too many properties"),
        (below(MERGED), "too many properties"),
        ({**below(CHOICE), "$defs": SHARED}, "too many properties"),
        (
            {**below({"type": "array", "items": CHOICE}), "definitions": {}, "$defs": SHARED},
            "too many properties",
        ),
    ],
    ids=["root", "below", "merged", "merged below", "shared", "items"],
)
def test_what_cannot_be_followed_is_refused(schemas, schema, why):
    """At once, wherever in the schema it stands, not in the middle of an output."""
    with pytest.raises(SchemaError, match=why):
        schemas.check(dump(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": form(150) | {"additionalProperties": {"$ref": "#/properties/b"}}, "b": {}}},
        {"properties": form(150)["properties"] | {"anyOf": {"type": "string"}, "$ref": {"type": "null"}}},
        {"anyOf": [form(150), {"type": "null"}]},
        {"allOf": [{"anyOf": [{"const": 7}, form(150)]}, {"type": ["integer", "object"]}]},
    ],
    ids=["a reference to elsewhere", "names like keywords", "object or null", "merged"],
)
def test_what_can_be_followed_is_taken(schemas, schema):
    """Whatever a part of it would be as a schema by itself."""
    schemas.check(dump(schema))


def test_required_properties_do_not_count(schemas):
    """They come in their order, one after the other: however many there are, nothing is left to choose."""
    schemas.check(dump(form(MAX_OPTIONAL + 500, required=1_000)))


@pytest.mark.parametrize(
    ("pattern", "why"), [("(?=a)b", "look-around"), ("a(", "unclosed group"), ("[z-a]", "start must be <=")]
)
def test_a_wrong_pattern_is_refused_with_the_reason(schemas, pattern, why):
    """Not only that it is wrong."""
    with pytest.raises(SchemaError, match=rf"^regex parse error: .*{why}"):
        schemas.check(dump({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(("schema", "stop"), [({"enum": [7, 8]}, "8"), ({"const": 7}, "7")])
def test_a_stop_id_comes_before_min_tokens_only_if_the_schema_leaves_nothing_else(schemas, schema, stop):
    """Of ``7`` and ``8`` that which is no stop id, however likely the other is; of ``7`` alone just that."""
    how = Sampling(schema=dump(schema), stop_ids=(ord(stop),), min_tokens=5)
    row = Row(1, 0, array("I", [1]), (1,), True, how, 0, 0, 0, None, 1, array("I", [1]))
    scores = torch.zeros(1, BYTES.vocabulary)
    scores[0, ord("8")] = 9.0
    (drawn,) = Sampler(BYTES.eos_ids, Matchers(schemas)).draw(scores, [row])
    assert drawn.tokens == (ord("7"),)
