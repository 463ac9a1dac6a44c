"""One generation over HTTP: from a parsed call to the last byte, exactly one ending.

Nothing is sent before the first output token, so that whatever goes wrong until then is an HTTP status
and the gateway may still try another worker (FLEET F40). After it, trouble is one error event and the
close, without ``[DONE]`` (F4, F41).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.api.answers import DONE, Answer, event
from engine.api.choices import Choice, Part, joined
from engine.api.errors import ApiError, of_ended, of_rejected
from engine.api.exchange import Headers, Sink, answer_bytes, answer_error
from engine.api.openai import Call
from engine.fleet.backend import Ask, Backend, Ended, Generated, Rejected, StreamEvent
from engine.model.tokenizer import Tokenizer
from engine.request import Finish

log = logging.getLogger(__name__)

STREAM_HEADERS: Headers = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache"),
)


@dataclass(frozen=True, slots=True)
class Stamps:
    """The two clocks of an answer."""

    clock: Callable[[], int]
    """ns, monotonic: the engine's clock."""
    created: Callable[[], int]
    """Unix time in whole seconds, for ``created``."""


class Generation:
    """Submits an Ask and turns its events into bytes on the sink. ``abort`` may come at any time."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        stamps: Stamps,
        call: Call,
        sink: Sink,
        headers: Headers = (),
        on_over: Callable[[Generation], None] = lambda _: None,
        reasons: bool = False,
    ) -> None:
        self._backend = backend
        self._stamps = stamps
        self._call = call
        self._sink = sink
        self._headers = headers
        self._on_over = on_over
        self._reasons = reasons
        self._piece = tokenizer.piece
        self._choices = [Choice(index, tokenizer, call.stop) for index in range(call.n)]
        self._parts: list[list[Part]] = [[] for _ in self._choices]  # of a whole answer
        self._answer: Answer | None = None  # set by a submit that was taken
        self._started = False
        self._over = False

    def submit(self, ask: Ask) -> None:
        """Hand the request to the gateway; a refusal is answered at once."""
        if self._over:
            return
        try:
            number, _ = self._backend.submit(ask, self._on_event)
        except Rejected as rejected:
            self.fail(of_rejected(rejected))
            return
        except Exception:
            log.exception("submit failed")
            self.fail(ApiError(500, "internal_error", "internal error"))
            return
        self._answer = Answer(number, self._stamps.created(), self._call, self._piece, self._reasons)

    def fail(self, error: ApiError) -> None:
        """End with an error: a status while nothing is sent, else one event and the close."""
        if not self._finish():
            return
        if self._started:
            self._sink.write(event(error.body()))
            self._sink.end()
        else:
            answer_error(self._sink, error, self._headers)

    def abort(self) -> None:
        """The client is gone (ENGINE E34)."""
        if self._finish() and self._answer is not None:
            self._backend.cancel(self._answer.id)

    def _on_event(self, what: StreamEvent) -> None:
        if self._over:
            return
        assert self._answer is not None  # no event before submit has returned
        try:
            self._take(self._answer, what)
        except Exception:  # E2: its client is told too, not only our log
            log.exception("the answer of request %d failed", self._answer.id)
            self.fail(ApiError(500, "internal_error", "the answer could not be written"))
            self._backend.cancel(self._answer.id)

    def _take(self, answer: Answer, what: StreamEvent) -> None:
        if isinstance(what, Ended):
            self._end(answer, what)
        elif self._choices[what.choice].reason is None:  # else it has met a stop string
            self._push(answer, self._choices[what.choice], what)

    def _push(self, answer: Answer, choice: Choice, what: Generated) -> None:
        self._show(answer, choice, choice.push(what.ids, what.logprobs))
        choice.reason = choice.reason or what.finish
        if choice.reason is None:
            return
        if all(other.reason is not None for other in self._choices):
            # The end of the last one is shown with the request's.
            self._backend.cancel(answer.id, Finish.STOP)
            return
        self._close(answer, choice)
        if what.finish is None:
            self._backend.cancel(answer.id, Finish.STOP, choice.index)

    def _show(self, answer: Answer, choice: Choice, part: Part) -> None:
        if not self._call.stream:
            self._parts[choice.index].append(part)
        elif part.text or (part.ids and self._tells_ids):
            self._start_stream()
            self._sink.write(answer.chunk(choice.index, part, not choice.begun))
            choice.begun = True
            self._backend.wrote(answer.id, self._stamps.clock())

    @property
    def _tells_ids(self) -> bool:
        return self._call.return_token_ids or self._call.sampling.logprobs is not None

    def _close(self, answer: Answer, choice: Choice) -> None:
        """Show what was held back and why the choice has ended."""
        self._show(answer, choice, choice.finish())
        choice.closed = True
        if self._call.stream:
            assert choice.reason is not None
            self._start_stream()
            self._sink.write(answer.finish(choice.index, choice.reason))

    def _start_stream(self) -> None:
        if not self._started:
            self._started = True
            self._sink.start(200, (*STREAM_HEADERS, *self._headers))

    def _end(self, answer: Answer, ended: Ended) -> None:
        settled = all(choice.reason is not None for choice in self._choices)
        cut = settled and ended.finish is Finish.CANCELLED  # our own cancel, by another name
        error = None if cut else of_ended(ended)
        if error is not None:
            self.fail(error)
            return
        for choice in self._choices:
            if not choice.closed:
                choice.reason = choice.reason or ended.finish
                self._close(answer, choice)
        self._finish()
        generated = sum(choice.generated for choice in self._choices)
        if self._call.stream:
            if self._call.include_usage:
                self._sink.write(answer.usage(ended, generated))
            self._sink.write(DONE)
            self._sink.end()
        else:
            choices = [(joined(self._parts[each.index]), str(each.reason)) for each in self._choices]
            answer_bytes(self._sink, answer.whole(choices, ended, generated), headers=self._headers)
            self._backend.wrote(answer.id, self._stamps.clock())

    def _finish(self) -> bool:
        """The one way to the end; False if it is over already."""
        if self._over:
            return False
        self._over = True
        self._on_over(self)
        return True
