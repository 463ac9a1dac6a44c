"""A verdict in plain words (ATTRIBUTION A25): what is known, and never more than that."""

from __future__ import annotations

from results.attribution.ledger import BUCKETS
from results.attribution.verdict import Attribution, Outcome

_OUTCOMES = {
    Outcome.APP_RESET: "the application changed what it sent",
    Outcome.EXPIRY: "likely retention expiry",
    Outcome.BOUNDARY: "it went where the cached prefix is not valid",
    Outcome.UNEXPLAINED: "no change in the request; cause not visible above the API",
    Outcome.HIT: "what could be reused was read",
    Outcome.COLD: "there was nothing to reuse",
    Outcome.BELOW_MINIMUM: "what could be reused is shorter than the provider caches",
    Outcome.CONCURRENT: "the request that computes this prefix had not finished it yet",
    Outcome.NOT_MEASURED: "the endpoint reported no cache counters",
}

_SUBTYPES = {
    "system_volatile_value": "a value such as a clock or a counter changed in the system prompt",
    "system_changed": "the system prompt is another one",
    "system_flap": "the system prompt went back to an earlier text",
    "tools_reordered": "the same tools came in another order",
    "tools_reserialised": "the same tools were written differently",
    "tools_added": "a tool was added",
    "tools_removed": "a tool was removed",
    "tools_changed": "a tool changed",
    "history_edited": "an earlier message was edited",
    "history_whitespace": "only whitespace of an earlier message changed",
    "history_reserialised": "an earlier message was written differently",
    "history_media_replaced": "an image or other medium was replaced",
    "history_pruned": "an earlier message was cut down",
    "history_field_dropped": "part of an earlier message was dropped",
    "history_block_moved": "an earlier message moved",
    "history_truncated_head": "the first messages were dropped",
    "history_truncated": "an earlier message ends early",
    "ephemeral_injection": "a message came or went in the middle of the history",
    "retokenised_output": "the previous answer came back as other tokens",
    "bos_or_template": "the chat template renders equal parts differently",
    "params_changed": "a parameter that the cache depends on changed",
}

_BUCKET_WORDS = {
    "new": "new in this request",
    "changed": "behind the first difference",
    "policy": "shared, but not readable (block rounding, minimum, markers)",
    "boundary": "cached elsewhere",
    "expiry": "likely expired",
    "unexplained": "readable and not read",
    "read": "read from the cache",
    "bonus": "read beyond what the log explains",
}


def explain(a: Attribution) -> list[str]:
    """Lines for a person: the verdict, the parent, the first difference, the ledger, the doubts."""
    lines = [f"{a.id}: {a.outcome} / {a.subtype} - {_OUTCOMES[a.outcome]}."]
    if a.subtype in _SUBTYPES:
        lines.append(f"What changed: {_SUBTYPES[a.subtype]}.")
    lines += _parent(a)
    lines += _difference(a)
    if a.ledger is not None:
        lines.append(f"Prompt: {a.prompt} tokens, {a.cached} read from the cache.")
        for name in BUCKETS:
            if tokens := getattr(a.ledger, name):
                lines.append(f"  {tokens:>8} {name}: {_BUCKET_WORDS[name]}")
    if a.is_miss and a.missed is not None:
        lines.append(f"Missed: {a.missed} tokens{_meant(a)}.")
    if a.co_cause is not None:
        lines.append(f"A second cause would have sufficed: {a.co_cause}.")
    if a.possible is not None:
        lines.append("Retention expiry is possible: it was idle longer than the provider promises.")
    lines.append(f"Confidence {a.confidence:.2f} from {a.level}, policy {a.policy} {a.policy_version}.")
    return lines


def _parent(a: Attribution) -> list[str]:
    if a.parent is None:
        return []
    idle = "" if a.idle_s is None else f"; its prefix was idle for {a.idle_s:g} s"
    return [f"Compared with {a.parent}, which shares {a.shared_prefix} leading tokens{idle}."]


def _difference(a: Attribution) -> list[str]:
    where = a.first_divergence
    if where is None:
        return []
    block = "" if where.block_index is None else f", in block {where.block_index}"
    there = "" if where.parent_path in (None, where.path) else f" (there: {where.parent_path})"
    return [
        f"First difference: {where.path}{there}, token {where.token_in_component} of it, "
        f"token {where.token_index} of the prompt{block}; "
        f"{where.components_equal_before} components before it are equal."
    ]


def _meant(a: Attribution) -> str:
    if a.intentional is True:
        return ", intended by the application"
    return ", although the meaning did not change" if a.intentional is False else ""
