"""How many tokens an answer had, and who says so (MEASUREMENT C9, C10, C13)."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Tokenizer

from loadgen.answer import Answer
from loadgen.payload import readable
from results.attribution.usage import generated, normalise, reasoning
from results.record import Record

CountTokens = Callable[[str], int]
"""Tokens of a text, without special tokens."""


def counter_of(tokenizer: Tokenizer) -> CountTokens:
    """Special tokens are left out: a BOS in front of every piece of text would be counted with each."""
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def fill_tokens(record: Record, answer: Answer, count_tokens: CountTokens | None) -> None:
    """Fill the counts of ``record``: of the prompt and of all choices from usage, of the events from those
    of the first choice."""
    usage = normalise({"usage": answer.usage, "timings": answer.timings})
    record.n_in = record.prompt_total = usage.prompt_total
    record.cache_read, record.cache_write = usage.cache_read, usage.cache_write
    record.n_reasoning = reasoning(answer.usage)
    record.n_out, record.n_out_source = _n_out(answer, count_tokens)
    counts = _of_events(record, answer)
    known = [count for count in counts if count is not None]
    if any(known) and len(known) == len(counts):
        record.event_tokens = known
    elif (
        counts
        and record.n_out_source in ("usage", "tokenizer")
        and _sole(answer)
        and record.n_out == len(counts)
    ):
        record.event_tokens = [1] * len(counts)  # each event bears one or more, so each bears one
    record.k_first = (counts[0] or 1) if counts else 1


def _of_events(record: Record, answer: Answer) -> list[int | None]:
    """What each event of the first choice brought, as far as that is known. Reasoning that was never shown is
    in usage when the first event comes, but came with none (C6); a sole event brought all that there is."""
    counts = list(answer.first.token_counts)
    unseen = (record.n_reasoning or 0) if _hides_reasoning(record, answer) else 0
    if counts and counts[0] is not None and counts[0] > unseen:
        counts[0] -= unseen
    if counts == [None] and _sole(answer) and record.n_out_source != "events":
        seen = (record.n_out or 0) - unseen
        counts[0] = seen if seen > 0 else None
    return counts


def _hides_reasoning(record: Record, answer: Answer) -> bool:
    return bool(record.n_reasoning) and not any(choice.reasoning for choice in answer.choices.values())


def token_warnings(record: Record, answer: Answer, count_tokens: CountTokens | None) -> list[str]:
    found = []
    if not _sole(answer):
        found.append("several_choices")
    hidden = _hides_reasoning(record, answer)
    if hidden:
        found.append("hidden_reasoning")
    if count_tokens is not None and record.n_out_source == "usage" and not hidden:
        counted = _by_tokenizer(answer, count_tokens)
        if counted and counted != record.n_out:
            found.append("tokenizer_mismatch")
    return found


def _sole(answer: Answer) -> bool:
    return len(answer.choices) <= 1


def _n_out(answer: Answer, count_tokens: CountTokens | None) -> tuple[int | None, str | None]:
    """C9: usage, else what the events say, else a tokenizer over the whole text, else events. Usage of an
    answer that broke off is as old as its last mention, and counts only where it was not overtaken."""
    said = generated(answer.usage)
    if said is not None and (answer.ended or said >= answer.tokens):
        return said, "usage"
    counts = [count for choice in answer.choices.values() for count in choice.token_counts]
    if any(counts) and None not in counts:
        return max(answer.tokens, sum(len(choice.ids) for choice in answer.choices.values())), "ids"
    if answer.whole_count:
        return answer.whole_count, "ids"
    if count_tokens is not None and (counted := _by_tokenizer(answer, count_tokens)) is not None:
        return counted, "tokenizer"
    if answer.in_one_piece:
        return None, None
    return len(counts), "events"


def _by_tokenizer(answer: Answer, count_tokens: CountTokens) -> int | None:
    """Of reasoning and text of each choice as a whole, for text cut into events has other tokens; None where
    some of the output is no text."""
    choices = answer.choices.values()
    if any(choice.beside for choice in choices):
        return None
    texts = ("".join(text) for choice in choices for text in (choice.reasoning, choice.text))
    return sum(count_tokens(readable(text)) for text in texts if text)
