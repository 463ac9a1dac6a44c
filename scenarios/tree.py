"""A YAML file as a tree whose every key knows its line, so that any error can be located."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

Path = Sequence[str | int]
Located = tuple[str, int, str]
"""File (or ``--set ..``), line (0 = none), message."""


class TreeError(Exception):
    """A text that is no tree of keys and values, or a path that leads nowhere in it."""

    def __init__(self, *found: Located) -> None:
        super().__init__(*found)
        self.found = found


def read(text: str, name: str) -> yaml.MappingNode:
    """Compose ``text``. Raises TreeError with every doubled or unusable key, or the first syntax error."""
    loader = yaml.SafeLoader(text)
    loader.name = name
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise TreeError((name, mark.line + 1 if mark else 0, f"not YAML: {error.problem}")) from error
    except yaml.YAMLError as error:
        raise TreeError((name, 0, f"not YAML: {error}")) from error
    if not isinstance(root, yaml.MappingNode):
        raise TreeError((name, 1, "a scenario is keys and values; begin with `headrace: 1`"))
    found = list(_faulty_keys(root, ()))
    if found:
        raise TreeError(*found)
    return root


def _faulty_keys(node: yaml.Node, above: tuple[yaml.Node, ...]) -> Iterator[Located]:
    if node in above:
        yield (*_at(node.start_mark), "an alias may not contain itself")
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _faulty_keys(item, (*above, node))
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                pass
            elif key.tag != "tag:yaml.org,2002:str":
                yield (*_at(key.start_mark), f"key {key.value!r} is not text (put it in quotes)")
            elif key.value in lines:
                yield (
                    *_at(key.start_mark),
                    f"key {key.value!r} stands here again; line {lines[key.value]} has it",
                )
            else:
                lines[key.value] = key.start_mark.line + 1
            yield from _faulty_keys(value, (*above, node))


def _at(mark: yaml.Mark) -> tuple[str, int]:
    return mark.name, mark.line + 1


def plain(root: yaml.Node) -> Any:
    """The tree as dicts, lists and scalars. Raises TreeError for a tag or date that YAML cannot read."""
    try:
        return yaml.SafeLoader("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        raise TreeError((*_at(error.problem_mark or root.start_mark), f"{error.problem}")) from error
    except ValueError as error:
        raise TreeError((*_at(root.start_mark), f"a value that YAML cannot read: {error}")) from error


def where(root: yaml.Node, path: Path) -> tuple[str, int]:
    """File and line of the deepest key of ``path`` that is there; steps that are no keys are passed over."""
    node, mark = root, root.start_mark
    for step in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            mark = node.start_mark
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == step:
                    node, mark = value, key.start_mark
    return _at(mark)


def edit(root: yaml.MappingNode, assignment: str) -> None:
    """Apply ``--set KEY=VALUE``, the value being YAML. Raises TreeError if it leads nowhere."""
    name = f"--set {assignment}"
    dotted, equals, text = assignment.partition("=")
    if not equals or not dotted.strip():
        raise TreeError((name, 0, "write KEY=VALUE, such as load.0.arrival.rate=3/s"))
    try:
        value = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise TreeError((name, 0, f"the value is not YAML: {error}")) from error
    mark = yaml.Mark(name, 0, -1, 0, None, 0)
    if value is None:
        value = yaml.ScalarNode("tag:yaml.org,2002:null", "", mark, mark)
    _mark(value, mark)
    put(root, dotted.strip(), value, mark)


def _mark(node: yaml.Node, mark: yaml.Mark) -> None:
    node.start_mark = mark
    if isinstance(node, yaml.CollectionNode):
        for child in node.value:
            for inner in child if isinstance(child, tuple) else (child,):
                _mark(inner, mark)


def put(root: yaml.MappingNode, dotted: str, value: yaml.Node, mark: yaml.Mark) -> None:
    """Set one key, ``load.0.arrival.rate``; mappings on the way are made where they are missing."""
    *steps, last = dotted.split(".")
    node: yaml.Node = root
    for k, step in enumerate(steps):
        node = _child(node, step, ".".join(steps[:k]), mark)
    if isinstance(node, yaml.SequenceNode):
        node.value[_index(node, last, ".".join(steps), mark)] = value
    elif isinstance(node, yaml.MappingNode):
        key = yaml.ScalarNode("tag:yaml.org,2002:str", last, mark, mark)
        kept = [pair for pair in node.value if pair[0].value != last]
        node.value = [*kept, (key, value)]
    else:
        raise TreeError((*_at(mark), f"{'.'.join(steps)} has no keys"))


def _child(node: yaml.Node, step: str, parent: str, mark: yaml.Mark) -> yaml.Node:
    if isinstance(node, yaml.SequenceNode):
        found: yaml.Node = node.value[_index(node, step, parent, mark)]
        return found
    if not isinstance(node, yaml.MappingNode):
        raise TreeError((*_at(mark), f"{parent} has no keys"))
    for key, value in node.value:
        if key.value == step:
            return value  # type: ignore[no-any-return]
    made = yaml.MappingNode("tag:yaml.org,2002:map", [], mark, mark)
    node.value.append((yaml.ScalarNode("tag:yaml.org,2002:str", step, mark, mark), made))
    return made


def _index(node: yaml.SequenceNode, step: str, parent: str, mark: yaml.Mark) -> int:
    if step.isdecimal() and int(step) < len(node.value):
        return int(step)
    raise TreeError((*_at(mark), f"{parent} has items 0 to {len(node.value) - 1}, not {step!r}"))


def overlay(root: yaml.MappingNode, key: str) -> None:
    """Apply the block under ``key`` as if each of its lines were an edit, and drop the block.

    Raises TreeError with every line that leads nowhere."""
    block = next((value for name, value in root.value if name.value == key), None)
    root.value = [pair for pair in root.value if pair[0].value != key]
    found: list[Located] = []
    for name, value in block.value if isinstance(block, yaml.MappingNode) else ():
        try:
            put(root, name.value, value, name.start_mark)
        except TreeError as error:
            found += error.found
    if found:
        raise TreeError(*found)
