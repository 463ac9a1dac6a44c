"""What is refused of a JSON schema before the library sees it: each of these would cost too much, or more
tokens than there are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MAX_BYTES = 64 * 1024
MAX_DEPTH = 64
MAX_MERGED = 8
"""String patterns in a schema that merges parts: n merged patterns cost the library about 3**n."""
MAX_MULTIPLES = 5_000
"""Of multipleOf, about 20 us for each unit: in sum, or as a product where parts are merged."""
MAX_REFS = 128
"""Different references up to which it is looked whether the output can end."""
MAX_OPTIONAL = 2_000
"""Optional properties of one object, any of which may come next: n of them cost the library about n**2 to
compile (2,000 a quarter of a second) and about 4 n items of its parser."""
CROWD = 100
"""Property names from which on it is tried whether the library can follow a part."""
MAX_TRIED = 8
"""Parts of one schema that are tried, the largest."""
_NOTES = {"title", "description", "default", "examples", "deprecated", "$comment", "$schema", "$id", "$defs"}
_NOTES |= {"definitions", "readOnly", "writeOnly"}
_SEVERAL = ("allOf", "anyOf", "oneOf")


class SchemaError(ValueError):
    """A schema that cannot be followed; the message says why."""


def check_text(schema: str) -> list[str]:
    """Parts of the schema, each as a schema of its own, that may be too many choices for the library.

    Raises SchemaError for text that is no JSON object, too long, nested too deeply, that merges too many
    patterns, or that only an endless output could meet."""
    size = len(schema.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise SchemaError(f"the schema has {size} bytes, at most {MAX_BYTES} are taken")
    try:
        root = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is no JSON: {error}") from error
    if not isinstance(root, dict):
        raise SchemaError("the schema must be a JSON object")
    parts = list(_objects(root))
    _check_cost(parts, any(map(_merges, parts)))
    references = {ref for part in parts if isinstance(ref := part.get("$ref"), str) and ref.startswith("#")}
    if len(references) <= MAX_REFS and not _can_end(root, _that_end(root, references)):
        raise SchemaError("nothing can meet this schema: each required part needs another one, without end")
    return [json.dumps(part) for part in _crowds(root)]


def _crowds(root: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts below ``root`` in which most names of properties may come next, the largest first."""
    parts = list(_objects(root))
    if sum(map(_names, parts)) < CROWD and not any(map(_merges, parts)):
        return []
    shared: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    many = [part for part in parts[1:] if _names(part) >= CROWD or not part.keys().isdisjoint(_SEVERAL)]
    many.sort(key=lambda part: -sum(map(_names, _objects(part))))
    return [{**shared, **part} for part in many[:MAX_TRIED]]


def _objects(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All objects in it. Raises SchemaError if it is too deep."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH + 1):
        yield from (value for value in level if isinstance(value, dict))
        level = [part for value in level for part in _inside(value)]
        if not level:
            return
    raise SchemaError(f"the schema is nested more than {MAX_DEPTH} levels deep")


def _inside(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, dict | list)]


def _check_cost(parts: list[dict[str, Any]], merging: bool) -> None:
    """Raises SchemaError for what the library would work on for seconds, or for ever."""
    patterns = sum(map(_patterns, parts))
    if merging and patterns > MAX_MERGED:
        raise SchemaError(
            f"the schema merges parts (allOf, or a $ref with keywords beside it) and has {patterns} patterns "
            f"and formats; at most {MAX_MERGED} are taken then"
        )
    optional = max(map(_optional, parts))
    if optional > MAX_OPTIONAL:
        raise SchemaError(f"an object has {optional} optional properties, at most {MAX_OPTIONAL} are taken")
    multiples = [_digits(part["multipleOf"]) for part in parts if "multipleOf" in part]
    if (math.prod(multiples) if merging else sum(multiples)) > MAX_MULTIPLES:
        first = ", ".join(map(str, multiples[:5]))
        how = "multiplied, since the schema merges parts," if merging else "together"
        raise SchemaError(f"multipleOf: {first} (digits without the point) are {how} above {MAX_MULTIPLES}")


def _digits(number: Any) -> int:
    """1250 as it is, 0.05 as 5: so many states has the automaton of its multiples, or less."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return 1  # the library says what is wrong with it
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    if not isinstance(exponent, int):  # 1e400 in a body is an infinity
        return 1
    return int("".join(map(str, digits[:40])) + "0" * min(max(exponent, 0), 40))


def _names(part: dict[str, Any]) -> int:
    properties = part.get("properties")
    return len(properties) if isinstance(properties, dict) else 0


def _optional(part: dict[str, Any]) -> int:
    required = part.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    properties = part.get("properties")
    return len(properties.keys() - needed) if isinstance(properties, dict) else 0


def _patterns(part: dict[str, Any]) -> int:
    keys = part.get("patternProperties")
    return ("pattern" in part) + ("format" in part) + (len(keys) if isinstance(keys, dict) else 0)


def _merges(part: dict[str, Any]) -> bool:
    several = part.get("allOf")
    if isinstance(several, list) and len(several) > 1:
        return True
    return len(part.keys() - _NOTES) > 1 and not part.keys().isdisjoint((*_SEVERAL, "$ref"))


def _that_end(root: dict[str, Any], references: set[str]) -> set[str]:
    """The references whose target some finite value meets, as far as required parts tell: those that need
    none of the others, then those that need only these, and so on."""
    ending: set[str] = set()
    while found := {ref for ref in references - ending if _can_end(_target(root, ref), ending)}:
        ending |= found
    return ending


def _can_end(part: Any, ending: set[str]) -> bool:
    """Whether some finite value meets ``part`` if the targets in ``ending`` have one. In doubt it does."""
    if not isinstance(part, dict) or "enum" in part or "const" in part:
        return True
    ref = part.get("$ref")
    if isinstance(ref, str) and ref.startswith("#") and ref not in ending:
        return False
    for name, decides in (("anyOf", any), ("oneOf", any), ("allOf", all)):
        options = part.get(name)
        if isinstance(options, list) and options and not decides(_can_end(each, ending) for each in options):
            return False
    return all(_can_end(each, ending) for each in _required(part))


def _required(part: dict[str, Any]) -> list[Any]:
    """The schemas of what every value of ``part`` holds."""
    properties, names = part.get("properties"), part.get("required")
    if part.get("type") == "object" and isinstance(properties, dict) and isinstance(names, list):
        return [properties[name] for name in names if isinstance(name, str) and name in properties]
    least = part.get("minItems")
    if part.get("type") == "array" and isinstance(least, int) and least > 0:
        first = part.get("prefixItems")
        first = first if isinstance(first, list) else []
        return first[:least] + ([part.get("items")] if least > len(first) else [])
    return []


def _target(root: dict[str, Any], ref: str) -> Any:
    """What a local reference means; None if there is nothing, which the library says better."""
    found: Any = root
    for step in ref.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found
