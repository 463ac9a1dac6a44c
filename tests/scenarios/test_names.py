"""Names that a request carries to its target."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.http1 import encode
from loadgen.transport import HttpRequest
from scenarios.load import ScenarioError, parse
from scenarios.names import nameless

URL = ["faults=[]", "gates=[]"]


def errors(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "s.yaml", overrides)
    return caught.value.errors


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("日本", "has '日', and a header holds printable characters of Latin-1 only"),
        ("a\r\nX-Other: b", "has '\\r'"),
        ("a\0", "has '\\x00'"),
        ("a\x85b", "has '\\x85'"),
        ("a\tb", "has '\\t'"),
        ("", "is empty"),
        (" a", "begins or ends with a blank, which a header loses"),
        ("a\xa0", "begins or ends with a blank"),
    ],
)
def test_a_tenant_that_no_header_can_carry_is_refused(good: str, name: str, why: str) -> None:
    """Wherever tenants are named, with the line; it would kill the load process in the middle of a run."""
    quoted = json.dumps(name)
    place = "arrival: {type: poisson"
    for key, block in (
        ("load.0.tenant", f"tenant: {quoted}"),
        ("load.0.tenants." + name, f"tenants: {{{quoted}: 40%, b: 60%}}"),
    ):
        (found,) = errors(good.replace(place, f"{block}\n    {place}"))
        assert found.startswith(f"s.yaml:16: {key}: {name!r} cannot name a tenant: it ")
        assert why in found
    (found,) = errors(good.replace("workers: 2", f"workers: 2\n    tenants: {{{quoted}: {{weight: 2}}}}"))
    assert found.startswith("s.yaml:8: target.engine.tenants.")
    assert why in found


@given(st.text(max_size=6) | st.text(string.printable, max_size=6))
def test_what_is_let_through_arrives_as_it_was_written(name: str) -> None:
    """The bytes of a request give it back."""
    if nameless(name) is None:
        raw = encode(HttpRequest("GET", "/", (("X-Headrace-Tenant", name),), b""), "h")
        line = next(part for part in raw.split(b"\r\n") if part.startswith(b"X-Headrace-Tenant:"))
        assert line.decode("latin-1").partition(":")[2].strip() == name


def test_a_class_is_named_by_what_a_header_holds(good: str) -> None:
    """Letters of other scripts are letters, and still no header has them."""
    parse(good.replace("batch", "bätch"), "s.yaml")
    found = errors(good.replace("batch", "c日本"))
    assert found == [
        "s.yaml:12: classes.c日本: 'c日本' cannot name a class: it has '日', and a header holds printable"
        " characters of Latin-1 only"
    ]


def test_an_adapter_without_a_name_is_refused(good: str) -> None:
    """Its requests would ask for the model."""
    url = "target={url: http://h, model: m}"
    (found,) = errors(good, *URL, url, 'load.0.adapters={"": 40%}')
    assert "load.0.adapters: '' cannot name an adapter: leave it out" in found


def test_an_engine_without_a_model_is_refused(good: str) -> None:
    """An empty name is no folder: the one that the command stands in is not meant."""
    (found,) = errors(good.replace("model: simulated", 'model: ""'))
    assert found.startswith("s.yaml:6: target.engine.model: the name is empty")
