"""Lengths, asked and served (MEASUREMENT C10, C14): is a word of ours a token of theirs?

The server's count is the one that counts. A chat template adds some tokens to each prompt, always as many
where the messages are as many; more than that, or a number that varies, and prompts were not as long as
asked for. First turns tell it: later ones bring answers that may be shorter than asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from results.stats.quantiles import Values

LARGEST_SPREAD = 0.01
"""Of a prompt's length, beyond which prompts are not what was asked for."""
USUAL_TEMPLATE = 400
"""Tokens; more than that, and a tenth of the prompt, is no chat template's."""

TELLING_RANGE = 0.2
"""Of the longest prompt: so far apart must lengths lie to tell tokens of text from those of a template."""


@dataclass(frozen=True, slots=True)
class Served:
    """First turns of one class whose served length is known."""

    n: int
    added: int
    """Tokens served beyond those asked for, in the median."""
    spread: int
    """Largest distance from that, tokens."""
    spread_share: float
    """The same, as a share of its prompt's length."""
    exact: float
    """Share of the prompts with exactly ``added`` tokens more than asked for."""
    tokens_per_unit: float | None
    """Tokens of a unit of text, seen from prompts of different lengths, or from a prompt that is shorter
    than its text or longer than any template makes it; None if neither tells."""

    @property
    def doubt(self) -> str | None:
        """Why these prompts are not as long as asked for; None if they are."""
        per = self.tokens_per_unit
        if per is not None and abs(per - 1) > LARGEST_SPREAD:
            return f"a word has {per:.3g} tokens and not one"
        if self.spread_share > LARGEST_SPREAD:
            return f"lengths differ from those asked for by {self.added} and up to {self.spread} more or less"
        return None


def served_lengths(data: pd.DataFrame) -> dict[str, Served]:
    """By class, of the requests (rows of records) that were answered and whose prompt tokens are known."""
    rows = data[data["n_in"].notna() & (data["turn"] == 0) & (data["n_in_asked"] > 0)]
    return {
        str(name): _served(
            group["n_in_asked"].to_numpy(dtype=np.float64), group["n_in"].to_numpy(dtype=np.float64)
        )
        for name, group in rows.groupby("class", sort=True)
    }


def _served(asked: Values, served: Values) -> Served:
    added = int(np.median(served - asked))
    off = np.abs(served - asked - added)
    slope = None
    if asked.max() - asked.min() >= TELLING_RANGE * asked.max():
        slope = float(np.polyfit(asked, served, 1)[0])
    elif added > max(USUAL_TEMPLATE, 0.1 * asked.max()) or added < 0:
        slope = float(np.median(served / asked))
    return Served(
        n=len(asked),
        added=added,
        spread=int(off.max()),
        spread_share=float((off / asked).max()),
        exact=float((off == 0).mean()),
        tokens_per_unit=slope,
    )


def lengths_block(data: pd.DataFrame) -> dict[str, Any]:
    """For summary.json: the requests of one class. Prompts as served, and how many answers have as many
    tokens as asked for, with their finish reasons (C14)."""
    served = served_lengths(data.assign(**{"class": "all"})).get("all")
    completed = data[(data["outcome"] == "completed").to_numpy(dtype=bool) & data["n_out"].notna()]
    exact = (completed["n_out"] == completed["n_out_asked"]).to_numpy(dtype=bool)
    finish = completed["finish"].fillna("unknown").value_counts()
    block: dict[str, Any] = {
        "prompt": None if served is None else asdict(served) | {"doubt": served.doubt},
        "output_exact": float(exact.mean()) if len(exact) else None,
        "finish": {str(reason): int(finish[reason]) for reason in sorted(finish.index)},
    }
    if served is None:
        block["prompt_reason"] = "no first turn has a served length"
    if not len(exact):
        block["output_exact_reason"] = "no completed request has a number of tokens"
    return block
