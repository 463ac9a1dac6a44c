"""What was done to a trace, in sentences for the manifest and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that makes the replay differ from the trace, and for what it lacks."""
    return [*_times(facts), *_scaling(facts), *_counts(facts), *_contents(facts)]


def _times(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts.get("spread_requests"):
        yield (
            f"Times were rounded to {facts['quantum_s']:g} s; {facts['spread_requests']:,} equal ones were"
            f" spread evenly inside buckets of {facts['spread_s']:g} s (seed {facts['seed']})."
        )
    elif facts.get("quantum_s"):
        yield f"Times are rounded to {facts['quantum_s']:g} s, and equal ones are sent at once."


def _scaling(facts: Mapping[str, Any]) -> Iterator[str]:
    if "thin" in facts:
        yield (
            f"Thinned: {facts['kept_sessions']:,} of {facts['sessions']:,} sessions are kept, a share of"
            f" {facts['thin']:g} (seed {facts['seed']}); gaps inside sessions stay."
        )
    if "compress" in facts:
        yield (
            f"Times and think times are divided by {facts['compress']:g}: idle times change, and with them"
            " what expires in a cache."
        )
    if "start_at_s" in facts:
        yield f"The replay begins {facts['start_at_s']:g} s into the trace."


_COUNTS = {
    "out_of_order": "Requests that stood behind a later one, sorted by time",
    "cut": "Requests cut to max_input or max_output",
    "dropped": "Requests dropped, being above max_input or max_output",
    "failed": "Requests that had failed when the trace was taken (see `failed`)",
    "failed_without_prompt": "Requests that had failed and have no prompt to send",
    "parents_missing": "Requests whose parent is not in the trace; they open sessions",
    "beyond_end_sessions": "Sessions due after the end of the load, not planned",
    "conversations_without_answer": "Conversations without an answered question, left out",
    "cancels_left_out": "Scripted cancels of the run, not repeated",
    "not_streamed": "Requests that were not streamed then; their class decides now",
    "without_output": "Requests that had no answer; one token is asked for",
    "model_switches": "Changes of the model inside a session; all go to the one target",
    "overlapping": "Requests that came before the end of the one before; they follow it at once",
    "with_images": "Requests that had images; only their tokens are sent",
}


def _counts(facts: Mapping[str, Any]) -> Iterator[str]:
    for key, words in _COUNTS.items():
        if facts.get(key):
            yield f"{words}: {facts[key]:,}."


def _contents(facts: Mapping[str, Any]) -> Iterator[str]:
    if str(facts.get("lengths", "")).startswith("estimated"):
        yield f"Prompt lengths are {facts['lengths']}."
    if "think_time" in facts:
        yield f"Think times are counted {facts['think_time']}."
    if facts.get("expected_rounds", 0) > 1:
        yield (
            f"The trace is played about {facts['expected_rounds']:.3g} times over: recorded texts come again,"
            " block ids are new each time."
        )
