"""What workers say, as those read it who look at one request at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine import messages as m


def apart(messages: Iterable[m.FromWorker]) -> Iterator[m.FromWorker]:
    """The same messages, with a TokensOut for each token of a step."""
    for message in messages:
        if isinstance(message, m.StepTokens):
            yield from message.apart()
        else:
            yield message
