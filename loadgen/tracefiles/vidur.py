"""Pairs of lengths, as vidur keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.tracefiles.base import Untimed
from loadgen.tracefiles.errors import Findings
from loadgen.tracefiles.fields import Field, anything, digits, take, tokens
from loadgen.tracefiles.reading import Source, table
from loadgen.tracefiles.recording import Recording, Singles

_SPEC = {
    "num_prefill_tokens": Field(digits(tokens)),
    "num_decode_tokens": Field(digits(tokens)),
    "num_total_tokens": Field(digits(tokens), must=False),
    "pd_ratio": Field(anything, must=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vidur(Untimed):
    """Vidur CSV: `num_prefill_tokens` and `num_decode_tokens`, one request a row. Lengths only: `arrival`
    says when they come, and no prompt shares anything with another."""

    def read(self, path: Path) -> Recording:
        found = Findings()
        source = Source(path, found)
        rows: list[tuple[int, int, int]] = []
        for line, cells in table(source, _SPEC):
            say = source.say(line)
            row = take(cells, _SPEC, say)
            if row is None:
                continue
            given, asked = row["num_prefill_tokens"], row["num_decode_tokens"]
            if row.get("num_total_tokens", given + asked) != given + asked:
                say(f"num_total_tokens: {row['num_total_tokens']:,} is not {given:,} + {asked:,}")
            rows.append((line, given, asked))
        found.refuse()
        lines, given_all, asked_all = np.array(rows, dtype=np.int64).T
        facts = {"rows": len(rows)}
        return Recording(str(path), source.digest, Singles(lines, given_all, asked_all), None, facts)
