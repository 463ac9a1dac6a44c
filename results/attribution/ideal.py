"""What an endless cache would have served: `hit_theoretical` (MEASUREMENT C41).

From the hashes of the prompts' blocks and the worker that holds them: a block can be read by a request on
the worker's incarnation on which another request needed it before. Nothing is evicted, so what a real hit
falls short of this was lost to room, to time, or to a route away from its blocks.

```
worker 0   p: |b0|b1|b2|b3|   ..answer|b4|            t: |b0|b1|b2|b3|b4|b5|rest
               first_scheduled             finished      reads 5 blocks; `rest` is no whole block
```
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from results.attribution.observed import Observed
from results.attribution.policies import Policy
from results.attribution.requestlog import Entry, entry

HITS = ("hit_device", "hit_host", "hit_disk", "hit_remote")


@dataclass(frozen=True, slots=True)
class _Served:
    """One request that a worker began to serve. Times in ns on the engine's clock."""

    entry: Entry
    home: tuple[Any, ...]
    begun: float
    ended: float | None
    prompt: int
    """Tokens of the prompt that were read or computed: all, unless it ended before."""

    def blocks(self, tokens: int, step: int) -> Iterator[int]:
        """What names the prefix up to the end of each whole block of the first ``tokens``."""
        sums = self.entry.sums
        assert sums is not None, "only those with hashes are kept"
        yield from sums[step - 1 : tokens : step].tolist()


def ideal_reads(
    observed: Sequence[Observed], truth: Iterable[Mapping[str, Any]], policy: Policy
) -> dict[str, int]:
    """Prompt tokens by request id, of the requests that a worker began to serve and whose tokens are known.
    A request that begins in the same step as another one cannot read what that one is only computing."""
    rows = {str(row["id"]): row for row in truth}
    served = sorted(_served(observed, rows, policy), key=attrgetter("begun"))
    held: defaultdict[tuple[Any, ...], set[int]] = defaultdict(set)
    answers: list[tuple[float, int, _Served]] = []
    found: dict[str, int] = {}
    for now, together in groupby(served, key=attrgetter("begun")):
        while answers and answers[0][0] <= now:
            one = heapq.heappop(answers)[2]
            held[one.home].update(one.blocks(_answered(one, policy), policy.step))
        beginning = list(together)
        for one in beginning:
            found[one.entry.seen.id] = _readable(one, held[one.home], policy.step)
        for one in beginning:
            held[one.home].update(one.blocks(one.prompt, policy.step))
            if one.ended is not None and one.entry.drawn:
                heapq.heappush(answers, (one.ended, one.entry.order, one))
    return found


def _served(
    observed: Sequence[Observed], rows: Mapping[str, Mapping[str, Any]], policy: Policy
) -> Iterator[_Served]:
    for order, seen in enumerate(observed):
        row = rows.get(seen.id)
        if row is None or row.get("first_scheduled") is None:
            continue
        made = entry(seen, order, policy)
        if made.sums is not None:
            home = (made.domain, row.get("worker"), row.get("incarnation"))
            done = sum(row.get(name) or 0 for name in (*HITS, "computed"))
            ended = row.get("finished")
            yield _Served(made, home, row["first_scheduled"], ended, min(made.prompt, int(done)))


def _answered(one: _Served, policy: Policy) -> int:
    """Tokens of prompt and answer that went through the model; of what ended within its prompt, those."""
    whole = one.entry.reusable - (not policy.drawn_token_run)
    return whole if one.prompt == one.entry.prompt else one.prompt


def _readable(one: _Served, held: set[int], step: int) -> int:
    """The last token of a prompt is always computed, so a whole prompt is never read."""
    blocks = 0
    for name in one.blocks(one.entry.prompt - 1, step):
        if name not in held:
            break
        blocks += 1
    return blocks * step
