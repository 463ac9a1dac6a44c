"""Files that nobody meant well: always ScenarioError with file and line, soon, and never a traceback."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.load import ScenarioError, parse, shipped

SMOKE = shipped()["smoke"].read_text()
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
LOCATED = re.compile(r"(f\.yaml:\d+|--set .*?): ", re.DOTALL)


def errors(text: str, *overrides: str) -> list[str]:
    """What is said of a file that must not load."""
    with pytest.raises(ScenarioError) as caught:
        parse(text, "f.yaml", overrides)
    assert all(LOCATED.match(line) for line in caught.value.errors), caught.value.errors[0]
    return caught.value.errors


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f.yaml:1: a scenario is keys and values"),
        ("- a\n- b", "f.yaml:1: a scenario is keys and values"),
        ("!!set {headrace: 1}", "f.yaml:1: a scenario is keys and values"),
        ("headrace: 1\n\tseed: 2\n", "f.yaml:2: not YAML"),
        ("headrace: 1\nseed: \x07", "f.yaml:2: not YAML: a character of code 0x7"),
        ("a: " + "[" * 2000, "nested deeper than 40 levels"),
        ("a: " + "[" * 60 + "]" * 60, "f.yaml:1: nested deeper than 40 levels"),
        (BOMB + SMOKE, "more than 200,000 keys and values"),
        ("a: &a [*a]\n" + SMOKE, "an alias may not contain itself"),
        (SMOKE.replace("seed: 1", "seed: " + "9" * 5000), "f.yaml:3: a value that YAML cannot read"),
        (SMOKE.replace("seed: 1", "seed: " + "9" * 300), "f.yaml:3: a whole number of more than 64 bits"),
        (SMOKE.replace("seed: 1", "seed: 2024-99-99"), "f.yaml:3: a value that YAML cannot read"),
        (SMOKE.replace("seed: 1", "seed: .nan"), "f.yaml:3: seed: expected a whole number"),
        (SMOKE.replace("seed: 1", 'seed: !!timestamp "x"'), "f.yaml:3: the tag '!!timestamp' does not fit"),
        (SMOKE.replace("seed: 1", "seed: !!bool x"), "f.yaml:3: the tag '!!bool' does not fit"),
        (SMOKE.replace("seed: 1", 'seed: !!int ""'), "f.yaml:3: the tag '!!int' does not fit"),
        (SMOKE + "\n? !!str [a]\n: b", "is not text"),
        (SMOKE + "\n? {a: b}\n: b", "is not text"),
        (SMOKE + "\n<<: 5", "takes an alias"),
        (SMOKE.replace("window: 5s", "window: 1e300s"), "f.yaml:11: phases.window: '1e300s' is too much"),
        (SMOKE.replace("rate: 6/s", "rate: 1e8/s"), "f.yaml:13: load.0.arrival: 6e+08 arrivals"),
        (SMOKE.replace("output: 8", "output: 0"), "f.yaml:13: load.0.workload: output must be 1 to"),
        (SMOKE.replace("input: 16", "input: -4"), "f.yaml:13: load.0.workload: input must be 1 to"),
        (SMOKE.replace("groups: 2", "groups: 0"), "f.yaml:13: load.0.workload: groups must be"),
        (SMOKE.replace("workers: 1", "workers: 9999999999999999999"), "an engine has 1 to"),
        (
            SMOKE.replace("ping: {limits", "ping: {rank: -1, limits"),
            "f.yaml:10: classes.ping.rank: a rank is",
        ),
        (SMOKE.replace("input: 256", "input: 0"), "f.yaml:10: classes.ping.limits.input: at least 1 token"),
        (SMOKE.replace("ping", "kv"), "f.yaml:10: classes.kv: 'kv' cannot name a class: gates know it"),
        (SMOKE.replace("id: hangup", "id: steady"), "f.yaml:15: faults.0.id: 'steady' cannot name a fault"),
        (SMOKE + "\ntimeouts: {total: 0s}", "f.yaml:22: timeouts.total: a timeout must be longer than 0s"),
    ],
)
def test_hostile_text_is_refused_where_it_stands(text: str, says: str) -> None:
    """Bombs, broken values, tags, and numbers out of all proportion get a line and a reason."""
    assert any(says in line for line in errors(text)), errors(text)


@pytest.mark.parametrize("value", ["!!bool foo", "[" * 2000, "&a [*a]", "\x00", '!!int ""', "? [a]\n: b"])
def test_hostile_overrides_are_refused(value: str) -> None:
    """The value of a --set is read with the same suspicion."""
    assert errors(SMOKE, f"seed={value}")


def test_thousands_of_errors_are_cut_short() -> None:
    """A file that is no scenario at all gives some errors and the number of the others."""
    found = errors(SMOKE + "".join(f"\nk{i}: 1" for i in range(1000)))
    assert len(found) < 300
    assert any("and 800 more errors" in line for line in found)


def test_a_megabyte_of_comments_loads() -> None:
    """Size alone is no fault."""
    assert parse(SMOKE + "\n#" + "x" * 1_000_000, "f.yaml").name == "f"


def _nodes(node: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [at, *(path for key, child in children for path in _nodes(child, (*at, key)))]


PLAIN = {name: yaml.safe_load(path.read_text()) for name, path in shipped().items()}
PATHS = [(name, path) for name, data in PLAIN.items() for path in _nodes(data) if path]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1s", "5/s", "10%", "1e400s", "p50 < 1s", "chat", "queued", "4GB", "0s", "-1", "all"])
    | st.dates()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["type", "decode", "id", "url"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PATHS), VALUES, st.sampled_from(["put", "drop", "wrap"]))
def test_any_mutation_of_a_shipped_scenario_loads_or_is_refused(
    chosen: tuple[str, tuple[str | int, ...]], value: object, how: str
) -> None:
    """One node replaced by anything, dropped or wrapped: a Scenario or a ScenarioError."""
    name, path = chosen
    data = yaml.safe_load(yaml.safe_dump(PLAIN[name]))
    holder = data
    for step in path[:-1]:
        holder = holder[step]
    if how == "drop":
        del holder[path[-1]]
    else:
        holder[path[-1]] = value if how == "put" else [holder[path[-1]]]
    _load_or_refuse(yaml.safe_dump(data, allow_unicode=True))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(PLAIN)),
    st.integers(0, 2000),
    st.integers(0, 12),
    st.text(alphabet=st.sampled_from("{}[]:,-&*!|>%@`\"'#?~<\n\t 01aé\x00\u2028\ufeff"), max_size=6),
)
def test_any_edit_of_the_text_loads_or_is_refused(name: str, at: int, gone: int, typed: str) -> None:
    """A few characters replaced anywhere: a Scenario or a ScenarioError."""
    text = shipped()[name].read_text()
    at %= len(text)
    _load_or_refuse(text[:at] + typed + text[at + gone :])


def _load_or_refuse(text: str) -> None:
    found = None
    try:
        parse(text, "f.yaml", virtual=True)
    except ScenarioError as error:
        found = error.errors
    assert found is None or (found and all(LOCATED.match(line) for line in found)), found
