"""From a file to a scenario: every error at once, each with its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from loadgen.tracefiles import TraceError
from scenarios import checks, sizes, traces, tree
from scenarios.describe import json_schema, resolved, tables
from scenarios.faulty import explain, path_of
from scenarios.forms import form
from scenarios.schema import Scenario
from scenarios.sizes import UNKNOWN, Model

__all__ = ["ScenarioError", "json_schema", "load", "parse", "resolved", "shipped", "tables"]


_MOST_ERRORS = 200
"""Beyond so many, the file is no scenario, and nobody reads them."""


class ScenarioError(Exception):
    """Everything that is wrong with a scenario, as ``file:line: what (did you mean ..)``."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = list(errors)


def load(
    path: str | Path, overrides: Sequence[str] = (), *, virtual: bool = False, model: Model = UNKNOWN
) -> Scenario:
    """Read a scenario file. ``overrides`` are ``KEY=VALUE`` as for ``--set`` and win over all else.

    With ``virtual`` the file's ``virtual:`` block is applied first; without it that block is checked
    all the same. ``model``: what is known of the target's otherwise than from the file. Raises
    ScenarioError, also for a file that cannot be read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError([f"{path}: cannot be read: {_why(error)}"]) from error
    return parse(text, str(path), overrides, virtual=virtual, model=model)


def parse(
    text: str,
    file: str,
    overrides: Sequence[str] = (),
    *,
    virtual: bool = False,
    model: Model = UNKNOWN,
) -> Scenario:
    """The same for a text; ``file`` names it in errors, and its stem names the scenario."""
    found: list[tree.Located] = []
    asked = _variant(text, file, overrides, virtual, found, model)
    if not virtual and not found and asked is not None and asked.virtual:
        _variant(text, file, overrides, True, found)
    if found or asked is None:
        raise ScenarioError(_lines(found))
    return replace(asked, name=Path(file).stem, question=_question(text))


def _variant(
    text: str,
    file: str,
    overrides: Sequence[str],
    virtual: bool,
    found: list[tree.Located],
    model: Model = UNKNOWN,
) -> Scenario | None:
    """One reading of the file; what is wrong is added to ``found``."""
    try:
        root = tree.read(text, file)
    except tree.TreeError as error:
        found += error.found
        return None
    edits = [partial(tree.overlay, root, "virtual")] if virtual else []
    for edit in (*edits, *(partial(tree.edit, root, assignment) for assignment in overrides)):
        try:
            edit()
        except tree.TreeError as error:
            found += error.found
    try:
        data = tree.plain(root)
    except tree.TreeError as error:
        found += error.found
        return None
    data = traces.placed(data, Path(file).parent)
    for path, message in checks.references(data):
        found.append(_located(root, path, message))
    scenario: Scenario | None = None
    try:
        scenario = _adapter().validate_python(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        for detail in details[:_MOST_ERRORS]:
            wrong = detail.get("ctx", {}).get("error")
            if isinstance(wrong, TraceError):
                found += wrong.found
            else:
                found.append(_located(root, path_of(detail["loc"]), explain(detail)))
        if len(details) > _MOST_ERRORS:
            found.append(_located(root, (), f"and {len(details) - _MOST_ERRORS} more errors"))
    else:
        for path, message in checks.sense(scenario, model):
            found.append(_located(root, path, message))
        found += sizes.too_long(scenario, model)
    return scenario


@cache
def _adapter() -> TypeAdapter[Scenario]:
    return TypeAdapter(form(Scenario))


def _located(root: yaml.Node, path: Sequence[str | int], message: str) -> tree.Located:
    file, line = tree.where(root, path)
    dotted = ".".join(str(step) for step in path)
    return file, line, f"{dotted}: {message}" if dotted else message


def _lines(found: Sequence[tree.Located]) -> list[str]:
    """In order of file and line, each once."""
    ordered = sorted(dict.fromkeys(found), key=lambda located: located[:2])
    return [f"{file}:{line}: {message}" if line else f"{file}: {message}" for file, line, message in ordered]


def _question(text: str) -> str:
    first = text.lstrip("\ufeff").split("\n", 1)[0].strip()
    return first.lstrip("#").strip() if first.startswith("#") else ""


def shipped() -> dict[str, Path]:
    """The scenarios that come with headrace, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start + 1}; save it as UTF-8"
    return error.strerror or str(error)
