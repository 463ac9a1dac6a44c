"""The decision tree and the subtypes of app_reset, on logs made for one thing each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from results.attribution.attribute import attribute
from results.attribution.fingerprints import fingerprints, masked
from results.attribution.observed import Component, Observed, token_hashes
from results.attribution.policies import POLICIES, Policy, headrace
from results.attribution.rules import RULES
from results.attribution.verdict import Attribution, Outcome

POLICY = headrace(16, ttl_s=300)
Part = tuple[str, str | None, str]
"""kind, role, text: one token per word."""

SYSTEM = "You keep the station at 09:15:02 tidy " * 20
TOOLS: list[Part] = [("tool", None, f'{{"name": "tool_{x}", "about": "{x * 60}" }}') for x in "abc"]


def words(n: int, stem: str) -> str:
    return " ".join(f"{stem}{i}" for i in range(n))


U1: Part = ("message", "user", words(120, "ask"))
A1: Part = ("message", "assistant", words(120, "say"))
U2: Part = ("message", "user", words(120, "more"))
A2: Part = ("message", "assistant", words(120, "yes"))
U3: Part = ("message", "user", words(90, "last"))
BASE: list[Part] = [*TOOLS, ("system", None, SYSTEM), U1, A1, U2]


def observe(name: str, parts: Sequence[Part], start: float, read: int | None, **kept: Any) -> Observed:
    components, ids, at = [], [], 0
    counts = {"tool": 0, "system": 0, "message": 0}
    for kind, role, text in parts:
        prints = fingerprints(text, b"s")
        tokens = text.replace(",", ", ").split() or [""]
        path = f"{kind if kind == 'system' else kind + 's'}[{counts[kind]}]"
        counts[kind] += 1
        components.append(
            Component(path, kind, at, len(tokens), role, prints.raw, prints.canon, prints.mask, text)
        )
        ids += [crc32(f"{kind}|{role}|{word}".encode()) for word in tokens]
        at += len(tokens)
    return Observed(
        id=name,
        session=kept.pop("session", "s"),
        ts_start=start,
        ts_first_token=kept.pop("first", start + 1),
        ts_end=kept.pop("end", start + 2),
        components=components,
        prompt_total=len(ids),
        cache_read=read,
        hashes=token_hashes(np.array(ids, dtype=np.uint32), 5),
        **kept,
    )


def second(
    before: Sequence[Part],
    after: Sequence[Part],
    *,
    read: int | None = 0,
    start: float = 10.0,
    policy: Policy = POLICY,
    **kept: Any,
) -> Attribution:
    """The verdict on a second request of one session."""
    first = observe("r0", before, 0.0, 0)
    return attribute([first, observe("r1", after, start, read, **kept)], policy)[1]


def swap(parts: Sequence[Part], index: int, text: str) -> list[Part]:
    kind, role, _ = parts[index]
    return [*parts[:index], (kind, role, text), *parts[index + 1 :]]


T0, T1, T2 = TOOLS
MORE = [A2, U3]
CHANGES: list[tuple[str, list[Part], list[Part], bool | None]] = [
    ("tools_reordered", BASE, [T1, T0, T2, *BASE[3:], *MORE], False),
    ("tools_reserialised", BASE, [("tool", None, T0[2].replace(" }", "}")), *BASE[1:], *MORE], False),
    ("tools_added", BASE, [T0, T1, ("tool", None, '{"name": "x"}'), T2, *BASE[3:], *MORE], None),
    ("tools_removed", BASE, [T0, T2, *BASE[3:], *MORE], None),
    ("tools_changed", BASE, [T0, ("tool", None, '{"name": "other"}'), T2, *BASE[3:], *MORE], None),
    ("system_volatile_value", BASE, [*swap(BASE, 3, SYSTEM.replace("15:02", "16:40", 1)), *MORE], False),
    ("system_changed", BASE, [*swap(BASE, 3, "Now " + SYSTEM), *MORE], None),
    ("history_edited", BASE, [*swap(BASE, 4, U1[2].replace("ask3 ", "told ")), *MORE], None),
    ("history_pruned", BASE, [*swap(BASE, 4, "[cut]"), *MORE], None),
    ("history_field_dropped", BASE, [*swap(BASE, 4, U1[2].replace("ask40 ask41 ", "")), *MORE], False),
    ("history_truncated", BASE, [*swap(BASE, 4, words(100, "ask")), *MORE], None),
    ("history_truncated_head", BASE, [*BASE[:4], A1, U2, *MORE], None),
    ("history_block_moved", BASE, [*BASE[:5], U2, A1, *MORE], False),
    (
        "ephemeral_injection",
        BASE,
        [*BASE[:5], ("message", "user", words(20, "note")), *BASE[5:], *MORE],
        False,
    ),
]


@pytest.mark.parametrize(("subtype", "before", "after", "meant"), CHANGES, ids=[c[0] for c in CHANGES])
def test_subtypes_of_app_reset(
    subtype: str, before: list[Part], after: list[Part], meant: bool | None
) -> None:
    """Each kind of change is an app_reset with its own name, and is meant, not meant, or unknown."""
    shared = second(before, after).shared_prefix or 0
    a = second(before, after, read=shared // 16 * 16)
    assert (a.outcome, a.subtype, a.intentional) == (Outcome.APP_RESET, subtype, meant)
    assert a.first_divergence is not None
    assert a.first_divergence.token_index == a.shared_prefix


def test_flap_is_a_return_to_an_earlier_system_prompt() -> None:
    """A-B-A: the third request has the first one's system prompt, and follows the second."""
    other = swap(BASE, 3, "Now " + SYSTEM)
    log = [
        observe("r0", BASE[:4], 0.0, 0, status="http_error", first=None),
        observe("r1", [*other, *MORE], 10.0, 0),
        observe("r2", [*BASE, *MORE, ("message", "user", "go")], 20.0, 48),
    ]
    a = attribute(log, POLICY)[2]
    assert (a.parent, a.outcome, a.subtype) == ("r1", Outcome.APP_RESET, "system_flap")


def test_media_replaced() -> None:
    """An image that became text is media_replaced, although the message also got shorter."""
    first, then = observe("r0", BASE, 0, 0), observe("r1", [*swap(BASE, 4, "[gone]"), *MORE], 10, 160)
    first.components[4].media = "image"
    assert attribute([first, then], POLICY)[1].subtype == "history_media_replaced"


def test_changed_template_is_no_edit() -> None:
    """Where components are equal and tokens are not, the template changed."""
    first, then = observe("r0", BASE, 0, 0), observe("r1", [*BASE, *MORE], 10, 0)
    assert then.hashes is not None
    then.hashes = then.hashes.copy()
    then.hashes[20] += np.uint64(1)
    a = attribute([first, then], POLICY)[1]
    assert (a.outcome, a.subtype) == (Outcome.APP_RESET, "bos_or_template")


def test_retokenised_answer() -> None:
    """The same answer in other tokens is retokenised_output; another answer is an edit."""
    answer = words(150, "say")
    for text, subtype in ((answer, "retokenised_output"), (f"{answer} but", "history_edited")):
        first = observe("r0", BASE[:5], 0.0, 0)
        size = first.prompt_total or 0
        prints = fingerprints(answer, b"s")
        first.output = Component(
            "output", "message", size, 150, "assistant", prints.raw, prints.canon, prints.mask
        )
        first.output_hashes = token_hashes(list(range(150)), 5, first=size)
        then = observe("r1", [*BASE[:5], ("message", "assistant", text), U2], 10.0, size // 16 * 16)
        a = attribute([first, then], POLICY)[1]
        assert (a.outcome, a.subtype) == (Outcome.APP_RESET, subtype)
        assert a.first_divergence is not None
        assert a.first_divergence.parent_path == "output"


@pytest.mark.parametrize(
    ("kept", "outcome", "subtype"),
    [
        ({"read": None}, "not_measured", "usage_without_cache_fields"),
        ({"read": None, "status": "reset"}, "not_measured", "aborted_without_usage"),
        ({"read": 10**6}, "not_measured", "usage_without_cache_fields"),
        ({"read": 0}, "unexplained", "full"),
        ({"read": 160}, "unexplained", "partial"),
        ({"read": 0, "start": 400.0}, "expiry", "idle_over_ttl"),
        ({"read": 0, "model": "other"}, "boundary", "model_changed"),
        ({"read": 0, "adapter": "a"}, "boundary", "adapter_changed"),
        ({"read": 0, "app_events": ["compaction"]}, "app_reset", "compaction"),
        ({"read": 0, "app_events": ["branch:x"]}, "app_reset", "branch_switch"),
        ({"read": 0, "session": "new", "workspace": "b"}, "cold", "first_request_of_lineage"),
    ],
)
def test_outcomes_of_an_unchanged_prompt(kept: dict[str, Any], outcome: str, subtype: str) -> None:
    """The same history and one more turn: everything but the prompt decides."""
    a = second(BASE, [*BASE, *MORE], **kept)
    assert (str(a.outcome), a.subtype) == (outcome, subtype)


def test_hits() -> None:
    """Read up to the floor is a hit: appended, repeated, or only the head shared."""
    appended = second(BASE, [*BASE, *MORE], read=len(_ids(BASE)) // 16 * 16)
    repeated = second(BASE, BASE, read=(len(_ids(BASE)) - 1) // 16 * 16)
    head = [*BASE[:4], ("message", "user", words(200, "else"))]
    shared = second(BASE, head, session="x", read=len(_ids(BASE[:4])) // 16 * 16)
    assert [(a.outcome, a.subtype) for a in (appended, repeated, shared)] == [
        (Outcome.HIT, "append_only"),
        (Outcome.HIT, "retry_of_same_prompt"),
        (Outcome.HIT, "shared_prefix"),
    ]


def _ids(parts: Sequence[Part]) -> Any:
    return observe("x", parts, 0, 0).hashes


def test_head_only_is_never_an_app_reset() -> None:
    """Another lineage that begins alike and reads nothing is unexplained or expiry, never app_reset."""
    head = [*BASE[:4], ("message", "user", words(200, "else"))]
    soon, late = (second(BASE, head, session="x", start=start) for start in (10.0, 999.0))
    assert (soon.outcome, late.outcome) == (Outcome.UNEXPLAINED, Outcome.EXPIRY)


def test_two_sufficient_causes() -> None:
    """An edit behind a lapsed prefix is expiry with the edit as second cause, and less certain."""
    a = second(BASE, [*swap(BASE, 4, U1[2].replace("ask3 ", "told ")), *MORE], start=999.0)
    assert (a.outcome, a.co_cause, a.overdetermined) == (Outcome.EXPIRY, "app_reset:history_edited", True)
    assert a.confidence <= 0.7


def test_an_aborted_attempt_proves_nothing() -> None:
    """What a cancelled request may have cached is no loss when it is not there."""
    log = [
        observe("r0", BASE, 0.0, None, status="cancelled_by_plan", first=None),
        observe("r1", BASE, 10.0, 0),
        observe("r2", BASE, 20.0, (len(_ids(BASE)) - 1) // 16 * 16),
    ]
    verdicts = attribute(log, POLICY)
    assert [(a.outcome, a.parent) for a in verdicts[1:]] == [(Outcome.COLD, None), (Outcome.HIT, "r1")]


def test_noise_below_the_floor_is_no_miss() -> None:
    """Rounding and a lost block together above the floor, each within it, are a hit: nothing changed."""
    size = len(_ids(BASE))
    read = size // 16 * 16 - 64
    a = second(BASE, [*BASE, *MORE], read=read)
    assert (a.outcome, a.subtype) == (Outcome.HIT, "append_only")


def test_below_minimum() -> None:
    """A reusable part under the provider's minimum cannot be a miss."""
    a = second(BASE[4:], [*BASE[4:], *MORE], policy=POLICIES["openai"])
    assert a.outcome is Outcome.BELOW_MINIMUM


def test_events_of_a_model_switch_make_a_boundary_intentional() -> None:
    """A declared switch is meant."""
    a = second(BASE, [*BASE, *MORE], model="other", app_events=["model_switch:other"])
    assert (a.outcome, a.intentional) == (Outcome.BOUNDARY, True)


def test_component_hashes_alone_are_enough_to_compare() -> None:
    """Without token hashes the shared prefix is that of whole components, at a lower level."""
    first, then = observe("r0", BASE, 0, 0), observe("r1", [*swap(BASE, 3, "Now " + SYSTEM), *MORE], 10, 0)
    a = attribute([replace(first, hashes=None), replace(then, hashes=None)], POLICY)[1]
    assert (a.outcome, a.subtype, a.level) == (Outcome.APP_RESET, "system_changed", "hashes")


def test_rules_are_the_tree_in_order() -> None:
    """T1 to T12, each once, the last always holding."""
    assert [rule.id for rule in RULES] == [f"T{i}" for i in range(1, 13)]


def test_masks() -> None:
    """Clocks, counters, UUIDs, hex runs and paths are masked; words are not."""
    assert masked("at 2031-03-04 09:15:02.") == masked("at 2031-03-04 09:16:17.")
    assert masked("run deadbeef01 in /tmp/a/b") == masked("run 0badcafe22 in /home/me")
    assert masked("id 123e4567-e89b-12d3-a456-426614174000") == "id #"
    assert masked("keep it tidy") == "keep it tidy"
    assert fingerprints('{"b": 1, "a": 2}', b"s").canon == fingerprints('{"a":2,"b":1}', b"s").canon
    assert fingerprints("a", b"s").raw != fingerprints("a", b"t").raw
