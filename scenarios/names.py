"""Names: of classes and faults, and those that a request carries to its target."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scenarios.schema import EngineTarget, LoadSpec, Scenario

Found = Iterator[tuple[tuple[str | int, ...], str]]

ID = re.compile(r"[A-Za-z_][\w-]*")
"""Of a class or a fault."""
RESERVED = ("all", "steady")

_NO_HEADER = re.compile(r"[^\x20-\x7e\xa0-\xff]")


def nameless(name: str) -> str | None:
    """Why no header can carry this name, as it would reach our engine; None if one can."""
    if not name:
        return "is empty"
    if found := _NO_HEADER.search(name):
        return f"has {found[0]!r}, and a header holds printable characters of Latin-1 only"
    return "begins or ends with a blank, which a header loses" if name != name.strip() else None


def names(scenario: Scenario) -> Found:
    """Tenants, adapters and models that no request could name."""
    for i, load in enumerate(scenario.load):
        for key, name in _tenants(load):
            if why := nameless(name):
                yield ("load", i, *key), f"{name!r} cannot name a tenant: it {why}"
        if "" in (load.adapters or ()):
            yield ("load", i, "adapters"), "'' cannot name an adapter: leave it out, what is left has none"
    target = scenario.target
    if isinstance(target, EngineTarget):
        for name in target.engine.tenants:
            if why := nameless(name):
                yield ("target", "engine", "tenants", name), f"{name!r} cannot name a tenant: it {why}"
        if not target.engine.model:
            yield ("target", "engine", "model"), "the name is empty: give that of a model, or a folder"


def _tenants(load: LoadSpec) -> Iterator[tuple[tuple[str, ...], str]]:
    yield ("tenant",), load.tenant
    for name in load.tenants or ():
        yield ("tenants", name), name
