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
from engine.api.errors import ApiError, of_ended, of_rejected
from engine.api.exchange import Headers, Sink, answer_bytes, answer_error
from engine.api.openai import Call
from engine.api.stream import Delta, OutputText
from engine.fleet.backend import Ask, Backend, Ended, Rejected, StreamEvent
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
    ) -> None:
        self._backend = backend
        self._stamps = stamps
        self._call = call
        self._sink = sink
        self._headers = headers
        self._on_over = on_over
        self._output = OutputText(tokenizer, call.stop)
        self._texts: list[str] = []
        self._ids: list[int] = []
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
        self._answer = Answer(number, self._stamps.created(), self._call.model, self._call.chat)

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
        elif not self._output.stopped:
            self._show(answer, self._output.push(what.ids))
            if self._output.stopped:
                self._backend.cancel(answer.id, Finish.STOP)

    def _show(self, answer: Answer, delta: Delta) -> None:
        if not self._call.stream:
            self._texts.append(delta.text)
            self._ids += delta.ids
            return
        ids = delta.ids if self._call.return_token_ids else None
        if delta.text or ids:
            first = not self._started
            self._start_stream()
            self._sink.write(answer.chunk(delta.text, ids, first))
            self._backend.wrote(answer.id, self._stamps.clock())

    def _start_stream(self) -> None:
        if not self._started:
            self._started = True
            self._sink.start(200, (*STREAM_HEADERS, *self._headers))

    def _end(self, answer: Answer, ended: Ended) -> None:
        cut = self._output.stopped and ended.finish is Finish.CANCELLED  # our own cancel, by another name
        error = None if cut else of_ended(ended)
        if error is not None:
            self.fail(error)
            return
        self._show(answer, self._output.finish())
        self._finish()
        generated = self._output.generated if self._output.stopped else ended.generated
        reason = Finish.STOP if self._output.stopped else ended.finish
        if self._call.stream:
            self._start_stream()
            self._sink.write(answer.finish(reason))
            if self._call.include_usage:
                self._sink.write(answer.usage(ended, generated))
            self._sink.write(DONE)
            self._sink.end()
        else:
            ids = tuple(self._ids) if self._call.return_token_ids else None
            body = answer.whole("".join(self._texts), ids, reason, ended, generated)
            answer_bytes(self._sink, body, headers=self._headers)
            self._backend.wrote(answer.id, self._stamps.clock())

    def _finish(self) -> bool:
        """The one way to the end; False if it is over already."""
        if self._over:
            return False
        self._over = True
        self._on_over(self)
        return True
