"""The HTTP interface without the sockets: routes, identities, and what becomes of each request.

The live server and virtual time both call ``Service.handle``, so a client gets the same bytes from both.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Protocol

from engine.api import openai
from engine.api.errors import ApiError, of_rejected
from engine.api.exchange import (
    Abort,
    ApiRequest,
    Headers,
    Sink,
    answer_bytes,
    answer_error,
    answer_json,
)
from engine.api.generation import Generation, Stamps
from engine.api.prompts import components, tokenise
from engine.config import CostModel, EngineConfig
from engine.fleet.backend import Ask, Backend, Rejected
from engine.model.tokenizer import Tokenizer
from engine.request import Sampling, Tokens

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OFF_LOOP_BYTES = 16 * 1024
"""Bodies from this size on are tokenised on a thread, where there is one."""

DEFAULT_CLASS = "default"
"""Of a request without a class; the gateway decides what that means."""
DRAINING_RETRY_S = 5
_OURS = ("x-request-id", "x-headrace-class", "x-headrace-tenant", "x-headrace-session")

log = logging.getLogger(__name__)


class Front(Backend, Protocol):
    """What the API asks of the fleet besides generations."""

    def not_ready(self) -> tuple[str, int] | None:
        """Why no worker can serve now and after how many seconds to try again; None when one can."""

    def metrics(self) -> bytes:
        """The text of /metrics."""

    def digests(self, tokens: Tokens[int], tenant: str) -> Sequence[bytes]:
        """Digests of the full blocks of a prompt (ENGINE E8)."""


class Service:
    """Handles exchanges on one event loop.

    ``executor`` tokenises long prompts off the loop. ``charge`` is set in virtual time: seconds that a
    prompt of so many tokens spends in gateway and tokenizer (ENGINE E40).
    """

    def __init__(
        self,
        front: Front,
        tokenizer: Tokenizer,
        config: EngineConfig,
        stamps: Stamps,
        executor: Executor | None = None,
        charge: Callable[[int], float] | None = None,
    ) -> None:
        self._front = front
        self._tokenizer = tokenizer
        self._config = config
        self._stamps = stamps
        self._executor = executor
        self._charge = charge
        self._requests = 0
        self._tokenising: set[asyncio.Task[None]] = set()
        self._generations: set[Generation] = set()
        self.draining = False
        """Set it, and generations are refused while those under way go on (ENGINE E53)."""
        self._routes: dict[tuple[str, str], Callable[[ApiRequest, Sink], Abort | None]] = {
            ("POST", "/v1/chat/completions"): lambda r, s: self._generate(r, s, openai.parse_chat),
            ("POST", "/v1/completions"): lambda r, s: self._generate(r, s, openai.parse_completion),
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("GET", "/live"): lambda _, sink: answer_json(sink, {"live": True}),
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): lambda _, sink: answer_bytes(sink, front.metrics(), METRICS_TYPE),
        }

    def handle(self, request: ApiRequest, sink: Sink) -> Abort:
        """Begin to answer on ``sink``; returns what to call when the client goes away."""
        try:
            _check_text(request.headers)
            abort = self._route(request)(request, sink)
        except ApiError as error:
            answer_error(sink, error, _echo(request))
        except Exception:  # E2: one request ends, never the process
            log.exception("%s %s failed", request.method, request.path)
            answer_error(sink, ApiError(500, "internal_error", "internal error"), _echo(request))
        else:
            return abort or _nothing
        return _nothing

    def _route(self, request: ApiRequest) -> Callable[[ApiRequest, Sink], Abort | None]:
        found = self._routes.get((request.method, request.path))
        if found is not None:
            return found
        methods = [method for method, path in self._routes if path == request.path]
        if methods:
            raise ApiError(405, "method_not_allowed", f"{request.path} takes {', '.join(methods)}")
        raise ApiError(404, "unknown_path", f"there is no {request.path}")

    def _generate(self, request: ApiRequest, sink: Sink, parse: Callable[[bytes], openai.Call]) -> Abort:
        received = self._stamps.clock()
        if self.draining:
            raise ApiError(503, "draining", "the engine is stopping", retry_after=DRAINING_RETRY_S)
        call = parse(request.body)
        if call.model != self._config.model:
            message = f"this engine serves {self._config.model!r}, not {call.model!r}"
            raise ApiError(404, "model_not_found", message, param="model")
        ask = self._ask(request, call, received)
        generation = Generation(
            self._front, self._tokenizer, self._stamps, call, sink, _echo(request), self._generations.discard
        )
        self._generations.add(generation)

        def submit(tokens: Tokens[int]) -> None:
            generation.submit(replace(ask, tokens=tokens, sampling=self._sampling(call)))

        if self._executor is not None and len(request.body) >= OFF_LOOP_BYTES:
            self._spawn(self._tokenise_aside(self._executor, call.prompt, submit, generation))
            return generation.abort
        with _failing(generation):
            tokens = tokenise(self._tokenizer, call.prompt)
            if self._charge is not None:
                asyncio.get_running_loop().call_later(self._charge(len(tokens)), submit, tokens)
            else:
                submit(tokens)
        return generation.abort

    def _ask(self, request: ApiRequest, call: openai.Call, received: int) -> Ask:
        """The generation asked for, still without tokens and sampling. Raises ApiError for whatever can be
        refused before the prompt is tokenised."""
        deadline = _deadline(request.headers)
        class_ = request.headers.get("x-headrace-class", DEFAULT_CLASS)
        try:
            self._front.admits(class_)
        except Rejected as rejected:
            raise of_rejected(rejected) from rejected
        return Ask(
            Tokens("I"),
            call.max_tokens,
            class_=class_,
            tenant=_tenant(request.headers),
            session=request.headers.get("x-headrace-session"),
            client_id=request.headers.get("x-request-id", ""),
            cache_salt=call.cache_salt,
            deadline_s=deadline,
            received=received,
        )

    async def _tokenise_aside(
        self,
        executor: Executor,
        prompt: openai.Prompt,
        submit: Callable[[Tokens[int]], None],
        generation: Generation,
    ) -> None:
        loop = asyncio.get_running_loop()
        with _failing(generation):
            submit(await loop.run_in_executor(executor, tokenise, self._tokenizer, prompt))

    @property
    def generating(self) -> int:
        """Generations that are not over."""
        return len(self._generations)

    async def settled(self) -> None:
        """Return when nothing is being tokenised any more."""
        while self._tokenising:
            await asyncio.wait(self._tokenising)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tokenising.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tokenising.discard)

    def _sampling(self, call: openai.Call) -> Sampling:
        self._requests += 1
        seed = call.seed
        if seed is None:
            # Two requests without a seed must differ, two runs of the engine must not.
            key = f"{self._config.seed}/{self._requests}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        return Sampling(call.temperature, seed & (1 << 63) - 1, call.ignore_eos)

    def _models(self, _: ApiRequest, sink: Sink) -> None:
        model = {
            "id": self._config.model,
            "object": "model",
            "created": self._stamps.created(),
            "owned_by": "headrace",
            "max_model_len": self._config.max_model_len,
        }
        answer_json(sink, {"object": "list", "data": [model]})

    def _tokenize(self, request: ApiRequest, sink: Sink) -> None:
        ids, found = components(self._tokenizer, openai.parse_tokenize(request.body))
        digests = self._front.digests(ids, _tenant(request.headers))
        answer_json(
            sink,
            {
                "tokens": ids.tolist(),
                "count": len(ids),
                "digests": [digest.hex() for digest in digests],
                "components": [asdict(component) for component in found],
            },
        )

    def _ready(self, _: ApiRequest, sink: Sink) -> None:
        reason = ("the engine is stopping", DRAINING_RETRY_S) if self.draining else self._front.not_ready()
        if reason is not None:
            text, retry_after = reason
            raise ApiError(503, "not_ready", text, retry_after=retry_after)
        answer_json(sink, {"ready": True, "model": self._config.model})


def gateway_seconds(cost: CostModel) -> Callable[[int], float]:
    """``t_request = g0 + g1*P`` of ENGINE E40: what virtual time charges in front of the gateway."""
    return lambda tokens: cost.g0 + cost.g1 * tokens


def _nothing() -> None:
    """Nobody minds that this client is gone."""


@contextmanager
def _failing(generation: Generation) -> Iterator[None]:
    """Whatever goes wrong before a generation is submitted is that generation's one ending."""
    try:
        yield
    except ApiError as error:
        generation.fail(error)
    except Exception:
        log.exception("tokenising failed")
        generation.fail(ApiError(500, "internal_error", "the prompt could not be tokenised"))


def _check_text(headers: Mapping[str, str]) -> None:
    """Raises ApiError 400 for a header of ours that is no UTF-8 (a server hands on its bytes as lone
    surrogates): such a name could neither be sent to a worker nor echoed."""
    for name in _OURS:
        try:
            headers.get(name, "").encode()
        except UnicodeEncodeError:
            raise ApiError(400, "invalid_value", f"the header {name} is not UTF-8") from None


def _tenant(headers: Mapping[str, str]) -> str:
    return headers.get("x-headrace-tenant", "default")


def _echo(request: ApiRequest) -> Headers:
    own = request.headers.get("x-request-id")
    return (("X-Request-Id", own),) if own and own.isprintable() else ()


def _deadline(headers: Mapping[str, str]) -> float | None:
    """Seconds that a request may take, from X-Deadline-Ms. Raises ApiError 400."""
    given = headers.get("x-deadline-ms")
    if given is None:
        return None
    try:
        milliseconds = float(given)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds < 1e10:
        raise ApiError(400, "invalid_value", f"X-Deadline-Ms: {given!r} is no number of ms above 0")
    return milliseconds / 1000
