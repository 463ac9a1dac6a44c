"""Mooncake: one request a line, with the ids of its prefix blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.plan import Part
from loadgen.tracefiles.base import Place, Timed, blocks_of
from loadgen.tracefiles.documents import per_line
from loadgen.tracefiles.errors import Findings
from loadgen.tracefiles.fields import Field, milliseconds, take, tokens
from loadgen.tracefiles.ids import id_list, misfit
from loadgen.tracefiles.reading import Source
from loadgen.tracefiles.recording import Recording, Request, Runs, Singles, in_order

BLOCK = 512
_SPEC = {
    "timestamp": Field(milliseconds),
    "input_length": Field(tokens),
    "output_length": Field(tokens),
    "hash_ids": Field(id_list),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mooncake(Timed):
    """Mooncake JSONL: `timestamp` ms, `input_length`, `output_length`, `hash_ids` of 512-token blocks. Equal
    leading ids are equal leading tokens, in all requests of the file; each request is its own session."""

    def read(self, path: Path) -> Recording:
        found = Findings()
        source = Source(path, found)
        rows: list[tuple[int, int, int, int]] = []
        blocks: list[Runs] = []
        for line, _, _, values in per_line(source):
            say = source.say(line)
            row = take(values, _SPEC, say)
            if row is None:
                continue
            if wrong := misfit(row["hash_ids"], row["input_length"], BLOCK):
                say(f"hash_ids: {wrong}")
            rows.append((row["timestamp"], line, row["input_length"], row["output_length"]))
            blocks.append(row["hash_ids"])
        found.refuse()
        times, lines, given, asked = np.array(rows, dtype=np.int64).T
        order, late = in_order(times)
        return Recording(
            str(path),
            source.digest,
            Singles(lines, given, asked, blocks).ordered(order),
            times[order] - times.min(),
            {"rows": len(rows), "out_of_order": late, "block_tokens": BLOCK},
        )

    def prompt(self, request: Request, at: Place) -> tuple[Part, ...]:
        scope = f"trace/{self.replay.recording.digest}"
        runs = blocks_of(request, BLOCK)
        return (Part("user", request.input, scope, blocks=runs, block_tokens=BLOCK),)
