"""A YAML file as a tree whose every key knows its line, so that any error can be located."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import yaml

Path = Sequence[str | int]
_TAG = "tag:yaml.org,2002:"
Located = tuple[str, int, str]
"""File (or ``--set ..``), line (0 = none), message."""


_DEEPEST = 40
_MOST_NODES = 200_000
"""Keys and values, aliases written out: far beyond any scenario, and still read in seconds."""
_TOO_LARGE = 2**64
"""Whole numbers are below it, so that any arithmetic with them gives a number."""


class TreeError(Exception):
    """A text that is no tree of keys and values, or a path that leads nowhere in it."""

    def __init__(self, *found: Located) -> None:
        super().__init__(*found)
        self.found = found


def read(text: str, name: str) -> yaml.MappingNode:
    """Compose ``text``. Raises TreeError with every doubled or unusable key and value, or the first syntax
    error."""
    root = _composed(text, name)
    if not isinstance(root, yaml.MappingNode) or root.tag != _TAG + "map":
        raise TreeError((name, 1, "a scenario is keys and values; begin with `headrace: 1`"))
    _checked(root)
    return root


def _composed(text: str, name: str) -> yaml.Node | None:
    try:
        loader = yaml.SafeLoader(text)
        loader.name = name
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise TreeError((name, mark.line + 1 if mark else 0, f"not YAML: {error.problem}")) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise TreeError((name, line, f"not YAML: a character of code {error.character:#x}")) from error
    except RecursionError as error:
        raise TreeError((name, 1, f"nested deeper than {_DEEPEST} levels")) from error


def _checked(root: yaml.Node) -> None:
    """Raises TreeError with all that can be composed and still not be used."""
    sizes: dict[yaml.Node, int] = {}
    found = list(_faults_of(root, (), sizes))
    if sizes.get(root, 0) > _MOST_NODES:
        found.append((*_at(root.start_mark), f"more than {_MOST_NODES:,} keys and values, aliases included"))
    if found:
        raise TreeError(*found)


def _faults_of(
    node: yaml.Node, above: tuple[yaml.Node, ...], sizes: dict[yaml.Node, int]
) -> Iterator[Located]:
    """What is wrong in a tree. A node is looked at once, however often aliases name it; ``sizes`` fills
    up with the nodes that each would be with its aliases written out."""
    if node in above:
        yield (*_at(node.start_mark), "an alias may not contain itself")
    elif len(above) == _DEEPEST:
        yield (*_at(node.start_mark), f"nested deeper than {_DEEPEST} levels")
    elif node not in sizes:
        yield from _own_faults(node)
        children = list(_children(node))
        for child in children:
            yield from _faults_of(child, (*above, node), sizes)
        sizes[node] = 1 + sum(sizes.get(child, 0) for child in children)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield value


def _own_faults(node: yaml.Node) -> Iterator[Located]:
    if isinstance(node, yaml.MappingNode):
        yield from _faulty_keys(node)
    wanted = _tag_of(node)
    if node.tag not in (wanted, _TAG + "str") or (
        node.tag != wanted and not isinstance(node, yaml.ScalarNode)
    ):
        yield (*_at(node.start_mark), f"the tag {_written(node.tag)!r} does not fit; leave it out")
    elif isinstance(node, yaml.ScalarNode):
        try:
            value = yaml.SafeLoader("").construct_document(node)
        except ValueError as error:
            yield (*_at(node.start_mark), f"a value that YAML cannot read: {error}")
        else:
            if isinstance(value, int) and abs(value) >= _TOO_LARGE:
                yield (*_at(node.start_mark), "a whole number of more than 64 bits")


def _written(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _tag_of(node: yaml.Node) -> str:
    """The tag that a node has by itself, without one being written."""
    if isinstance(node, yaml.ScalarNode):
        resolved = _resolver().resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
        return str(resolved)
    return _TAG + ("seq" if isinstance(node, yaml.SequenceNode) else "map")


@cache
def _resolver() -> yaml.SafeLoader:
    return yaml.SafeLoader("")


def _faulty_keys(node: yaml.MappingNode) -> Iterator[Located]:
    lines: dict[str, int] = {}
    for key, value in node.value:
        if key.tag == _TAG + "merge":
            if not isinstance(value, yaml.MappingNode | yaml.SequenceNode):
                yield (*_at(key.start_mark), "<<: takes an alias of keys and values")
        elif key.tag != _TAG + "str" or not isinstance(key, yaml.ScalarNode):
            shown = key.value if isinstance(key, yaml.ScalarNode) else "[..]" if key.value else "[]"
            yield (*_at(key.start_mark), f"key {shown!r} is not text (put it in quotes)")
        elif key.value in lines:
            yield (
                *_at(key.start_mark),
                f"key {key.value!r} stands here again; line {lines[key.value]} has it",
            )
        else:
            lines[key.value] = key.start_mark.line + 1


def _at(mark: yaml.Mark) -> tuple[str, int]:
    return mark.name, mark.line + 1


def plain(root: yaml.Node) -> Any:
    """The tree as dicts, lists and scalars. Raises TreeError for a merge (``<<``) that YAML cannot do."""
    try:
        return yaml.SafeLoader("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        raise TreeError((*_at(error.problem_mark or root.start_mark), f"{error.problem}")) from error


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
    mark = yaml.Mark(name, 0, -1, 0, None, 0)
    try:
        value = _composed(text, name) or yaml.ScalarNode(_TAG + "null", "", mark, mark)
        _checked(value)
    except TreeError as error:
        words = (message.replace("not YAML", "the value is not YAML") for _, _, message in error.found)
        raise TreeError(*((name, 0, message) for message in words)) from error
    _mark(value, mark)
    put(root, dotted.strip(), value, mark)


def _mark(node: yaml.Node, mark: yaml.Mark) -> None:
    node.start_mark = mark
    if isinstance(node, yaml.CollectionNode):
        for child in node.value:
            for inner in child if isinstance(child, tuple) else (child,):
                _mark(inner, mark)


def put(root: yaml.MappingNode, dotted: str, value: yaml.Node, mark: yaml.Mark) -> None:
    """Set one key, ``load.0.arrival.rate``; mappings on the way are made where they are missing, and are the
    path's own from now on: what an alias shares with other places stays as it is there."""
    *steps, last = dotted.split(".")
    node: yaml.Node = root
    for k, step in enumerate(steps):
        node = _child(node, step, ".".join(steps[:k]), mark)
    if isinstance(node, yaml.SequenceNode):
        node.value[_index(node, last, ".".join(steps), mark)] = value
    elif isinstance(node, yaml.MappingNode):
        key = yaml.ScalarNode(_TAG + "str", last, mark, mark)
        kept = [pair for pair in node.value if pair[0].value != last]
        node.value = [*kept, (key, value)]
    else:
        raise TreeError((*_at(mark), f"{'.'.join(steps)} has no keys"))


def _child(node: yaml.Node, step: str, parent: str, mark: yaml.Mark) -> yaml.Node:
    if isinstance(node, yaml.SequenceNode):
        at = _index(node, step, parent, mark)
        node.value[at] = found = _own(node.value[at])
        return found
    if not isinstance(node, yaml.MappingNode):
        raise TreeError((*_at(mark), f"{parent} has no keys"))
    for at, (key, value) in enumerate(node.value):
        if key.value == step:
            node.value[at] = key, found = key, _own(value)
            return found
    made = yaml.MappingNode(_TAG + "map", [], mark, mark)
    node.value.append((yaml.ScalarNode(_TAG + "str", step, mark, mark), made))
    return made


def _own(node: yaml.Node) -> yaml.Node:
    if not isinstance(node, yaml.CollectionNode):
        return node
    return type(node)(node.tag, [*node.value], node.start_mark, node.end_mark, node.flow_style)


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
