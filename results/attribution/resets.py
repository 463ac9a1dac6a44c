"""What the application changed: subtypes of app_reset (ATTRIBUTION 8), each list in its order of A18, A19."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from results.attribution.facts import OUTPUT, Facts
from results.attribution.observed import Component
from results.attribution.readable import level_params

PRUNED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """The first component that differs. ``mine`` or ``theirs`` is None past the end of the other."""

    mine: Component | None
    theirs: Component | None
    at: int
    """Its index, the same in this request and in its parent."""
    facts: Facts

    @property
    def rest(self) -> Sequence[Component]:
        return self.facts.t.components[self.at + 1 :]

    @property
    def parent_rest(self) -> Sequence[Component]:
        return self.facts.p.components[self.at + 1 :]


def change(facts: Facts) -> Change:
    """Locate the first component that differs; behind the parent's prompt that is its answer."""
    mine, theirs = facts.t.components, facts.p.components
    at = len(mine) if facts.divergence is None else facts.divergence.components_equal_before
    there = theirs[at] if at < len(theirs) else facts.p.seen.output
    return Change(mine[at] if at < len(mine) else None, there, at, facts)


def subtype(facts: Facts) -> str:
    """The first of A18 that holds."""
    sums, floor = facts.sums, facts.floor
    differ = level_params(facts.t, facts.policy) != level_params(facts.p, facts.policy)
    if differ and sums.policy > sums.changed:
        return "params_changed"
    if sums.policy > floor and _marked_end_gone(facts):
        return "breakpoint_on_volatile_block"
    if sums.changed > floor or facts.policy.style != "breakpoint":
        return content(facts)
    return _markers(facts)


def _marked_end_gone(facts: Facts) -> bool:
    """The last component that p marked is not in t's place any more, and nothing else changed much."""
    marked = [i for i, c in enumerate(facts.p.components) if c.cache_ttl is not None]
    if not marked or facts.sums.changed > facts.floor:
        return False
    last = facts.p.components[marked[-1]]
    mine = facts.t.components
    return marked[-1] >= len(mine) or mine[marked[-1]].hash != last.hash


def _markers(facts: Facts) -> str:
    mine = [c for c in facts.t.components if c.cache_ttl is not None]
    lives = {c.cache_ttl for c in facts.p.components if c.cache_ttl is not None}
    if mine and lives and not lives & {c.cache_ttl for c in mine}:
        return "cache_policy_changed"
    if not mine:
        return "cache_markers_missing"
    added = len(facts.t.components) - len(facts.p.components)
    return "breakpoint_out_of_lookback" if added >= facts.policy.lookback else "breakpoint_missing"


def content(facts: Facts) -> str:
    """A19: by the first component that differs."""
    found = change(facts)
    kinds = {c.kind for c in (found.mine, found.theirs) if c is not None}
    equal = found.mine is not None and found.theirs is not None and _same(found.mine, found.theirs)
    if equal and not _in_answer(found):
        return "bos_or_template"
    if "tool" in kinds:
        return _first(TOOLS, found)
    if "system" in kinds:
        return _first(SYSTEM, found)
    return _first(HISTORY, found)


Test = Callable[[Change], bool]


def _first(table: Sequence[tuple[str, Test]], found: Change) -> str:
    return next(name for name, holds in table if holds(found))


def _same(a: Component, b: Component) -> bool:
    return bool(a.hash) and (a.hash, a.kind, a.role) == (b.hash, b.kind, b.role)


def _equal(field: str) -> Test:
    def holds(c: Change) -> bool:
        if c.mine is None or c.theirs is None:
            return False
        mine = getattr(c.mine, field)
        return bool(mine) and mine == getattr(c.theirs, field)

    return holds


def _tools(c: Change, field: str) -> tuple[list[str], list[str]]:
    sides = (c.facts.t.components, c.facts.p.components)
    mine, theirs = ([getattr(x, field) for x in side if x.kind == "tool"] for side in sides)
    return mine, theirs


def _tools_reordered(c: Change) -> bool:
    mine, theirs = _tools(c, "canon_hash")
    return mine != theirs and Counter(mine) == Counter(theirs)


def _tools_reserialised(c: Change) -> bool:
    mine, theirs = _tools(c, "canon_hash")
    return mine == theirs


def _tools_added(c: Change) -> bool:
    mine, theirs = _tools(c, "canon_hash")
    return Counter(mine) > Counter(theirs)


def _tools_removed(c: Change) -> bool:
    mine, theirs = _tools(c, "canon_hash")
    return Counter(mine) < Counter(theirs)


def _always(c: Change) -> bool:
    return True


TOOLS: tuple[tuple[str, Test], ...] = (
    ("tools_reordered", _tools_reordered),
    ("tools_reserialised", _tools_reserialised),
    ("tools_added", _tools_added),
    ("tools_removed", _tools_removed),
    ("tools_changed", _always),
)


def _flap(c: Change) -> bool:
    """A-B-A: an earlier request of the session had this very component there."""
    mine = c.mine
    if mine is None or not mine.hash:
        return False
    before = [e for e in c.facts.earlier if e.order < c.facts.p.order]
    return any(x.path == mine.path and x.hash == mine.hash for e in before for x in e.components)


def _volatile(c: Change) -> bool:
    return _equal("mask_hash")(c) and not _equal("canon_hash")(c)


SYSTEM: tuple[tuple[str, Test], ...] = (
    ("system_volatile_value", _volatile),
    ("system_flap", _flap),
    ("system_changed", _always),
)


def _in_answer(c: Change) -> bool:
    where = c.facts.divergence
    return where is not None and where.parent_path == OUTPUT


def _retokenised(c: Change) -> bool:
    """The same answer came back as other tokens; only token ids can show it."""
    if not _in_answer(c) or c.mine is None or c.mine.role != "assistant":
        return False
    answer = c.facts.p.seen.output
    if answer is not None and answer.canon_hash and c.mine.canon_hash:
        return answer.canon_hash == c.mine.canon_hash
    where = c.facts.divergence
    return where is not None and where.token_index > c.facts.p.prompt


def _whitespace(c: Change) -> bool:
    if not _equal("canon_hash")(c):
        return False
    assert c.mine is not None
    assert c.theirs is not None
    if c.mine.text is None or c.theirs.text is None:
        return True  # messages are seldom JSON
    return c.mine.text.split() == c.theirs.text.split()


def _media(c: Change) -> bool:
    return c.mine is not None and c.theirs is not None and c.mine.media != c.theirs.media


def _hashes(components: Sequence[Component]) -> set[str]:
    return {c.canon_hash for c in components if c.canon_hash}


def _moved(c: Change) -> bool:
    """What stood here in the parent stands further on now, and what stood further on stands here."""
    if c.mine is None or c.theirs is None:
        return False
    return c.theirs.canon_hash in _hashes(c.rest) and c.mine.canon_hash in _hashes(c.parent_rest)


def _truncated_head(c: Change) -> bool:
    """Messages from the first one on are gone, later ones are still there."""
    first = next((i for i, x in enumerate(c.facts.t.components) if x.kind == "message"), None)
    return c.at == first and c.mine is not None and c.mine.canon_hash in _hashes(c.parent_rest)


def _injected(c: Change) -> bool:
    """One message came or went in the middle of the history."""
    if c.mine is None or c.theirs is None:
        return False
    came = bool(c.rest) and _same(c.rest[0], c.theirs)
    went = bool(c.parent_rest) and _same(c.mine, c.parent_rest[0])
    return came or went or _reminder_went(c)


def _reminder_went(c: Change) -> bool:
    """The parent's last message, not an assistant's, was never part of the history."""
    assert c.mine is not None
    assert c.theirs is not None
    last = not c.parent_rest and c.theirs is not c.facts.p.seen.output
    return last and c.theirs.role in ("user", "system") and c.mine.role == "assistant"


def _pruned(c: Change) -> bool:
    if c.mine is None or c.theirs is None or c.mine.role != c.theirs.role:
        return False
    return c.mine.tok < PRUNED_SHARE * c.theirs.tok


def _field_dropped(c: Change) -> bool:
    """What is left is the parent's text without one part of it (needs the text)."""
    if c.mine is None or c.theirs is None or c.mine.text is None or c.theirs.text is None:
        return False
    mine, theirs = c.mine.text, c.theirs.text
    if not mine or len(mine) >= len(theirs) or theirs.startswith(mine):
        return False
    head = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), len(mine))
    return theirs.endswith(mine[head:])


def _truncated(c: Change) -> bool:
    """A message ends early, or the history does."""
    where = c.facts.divergence
    if c.mine is None or c.theirs is None or where is None:
        return False
    if c.mine.text is not None and c.theirs.text is not None:
        return len(c.mine.text) < len(c.theirs.text) and c.theirs.text.startswith(c.mine.text)
    return c.mine.tok < c.theirs.tok and where.token_index >= c.mine.start + c.mine.tok


HISTORY: tuple[tuple[str, Test], ...] = (
    ("retokenised_output", _retokenised),
    ("history_whitespace", _whitespace),
    ("history_reserialised", _equal("canon_hash")),
    ("history_media_replaced", _media),
    ("history_block_moved", _moved),
    ("history_truncated_head", _truncated_head),
    ("ephemeral_injection", _injected),
    ("history_pruned", _pruned),
    ("history_field_dropped", _field_dropped),
    ("history_truncated", _truncated),
    ("history_edited", _always),
)
"""Moves of whole messages are tried before changes within one, so that a message is compared with itself."""

INTENDED_EVENTS = ("compaction", "clear", "branch", "truncate", "model_switch", "reasoning_level")
UNCHANGED_MEANING = frozenset(
    {
        "tools_reordered",
        "tools_reserialised",
        "system_volatile_value",
        "system_flap",
        "history_whitespace",
        "history_reserialised",
        "history_field_dropped",
        "history_block_moved",
        "ephemeral_injection",
        "retokenised_output",
        "breakpoint_on_volatile_block",
        "cache_policy_changed",
        "cache_markers_missing",
        "breakpoint_out_of_lookback",
        "breakpoint_missing",
    }
)


def intentional(facts: Facts, name: str) -> bool | None:
    """A20: True for declared resets and switches, False if the meaning is unchanged, else None."""
    events = {event.partition(":")[0] for event in facts.t.seen.app_events}
    if events & set(INTENDED_EVENTS):
        return True
    return False if name in UNCHANGED_MEANING else None
