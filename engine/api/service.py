"""The HTTP interface without the sockets: routes, identities, and what becomes of each request.

The live server and virtual time both call ``Service.handle``, so a client gets the same bytes from both.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Protocol

from engine.api import openai, sampling
from engine.api.errors import ApiError, invalid, of_rejected
from engine.api.exchange import Abort, ApiRequest, Sink, answer_bytes, answer_json, answering
from engine.api.generation import Generation, Stamps
from engine.api.headers import check_text, deadline_of, echo, tenant
from engine.api.prompts import Component, check_salt, components, tokenise
from engine.config import CostModel, EngineConfig
from engine.fleet.backend import Ask, Backend, Rejected
from engine.model.grammar import Schemas
from engine.model.schema_text import SchemaError
from engine.model.tokenizer import Tokenizer
from engine.request import Sampling, Tokens

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OFF_LOOP_BYTES = 16 * 1024
"""Bodies from this size on are tokenised on a thread, where there is one."""

DEFAULT_CLASS = "default"
"""Of a request without a class; the gateway decides what that means."""
DRAINING_RETRY_S = 5

log = logging.getLogger(__name__)


class Front(Backend, Protocol):
    """What the API asks of the fleet besides generations."""

    def not_ready(self) -> tuple[str, int] | None:
        """Why no worker can serve now and after how many seconds to try again; None when one can."""

    def adapters(self) -> Sequence[str]:
        """Names beside the model's own that a request may give as ``model`` (ENGINE E39)."""

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
        self._schemas = Schemas(tokenizer)
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
        abort: Abort | None = None
        with answering(request, sink, echo(request)):
            check_text(request.headers)
            abort = self._route(request)(request, sink)
        return abort or _nothing

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
        ask = self._ask(request, call, received)
        generation = Generation(
            self._front,
            self._tokenizer,
            self._stamps,
            call,
            sink,
            echo(request),
            self._generations.discard,
            self._config.expose_miss_reasons,
        )
        self._generations.add(generation)

        def submit(tokens: Tokens[int]) -> None:
            generation.submit(replace(ask, tokens=tokens, sampling=self._seeded(call)))

        if self._executor is not None and self._is_work(request, call):
            self._spawn(self._prepare_aside(self._executor, call, submit, generation))
            return generation.abort
        with _failing(generation):
            tokens = self._prepare(call)
            if self._charge is not None:
                asyncio.get_running_loop().call_later(self._charge(len(tokens)), submit, tokens)
            else:
                submit(tokens)
        return generation.abort

    def _ask(self, request: ApiRequest, call: openai.Call, received: int) -> Ask:
        """The generation asked for, still without tokens and sampling. Raises ApiError for whatever can be
        refused before the prompt is tokenised."""
        adapter = self._adapter(call.model)
        sampling.check_ids(call.sampling, self._tokenizer.vocabulary)
        check_salt(call.cache_salt)
        deadline = deadline_of(request.headers)
        class_, payer = request.headers.get("x-headrace-class", DEFAULT_CLASS), tenant(request.headers)
        try:
            self._front.admits(class_, payer)
        except Rejected as rejected:
            raise of_rejected(rejected) from rejected
        return Ask(
            Tokens("I"),
            call.max_tokens,
            class_=class_,
            tenant=payer,
            session=request.headers.get("x-headrace-session"),
            client_id=request.headers.get("x-request-id", ""),
            cache_salt=call.cache_salt,
            deadline_s=deadline,
            n=call.n,
            adapter=adapter,
            retention=call.retention,
            received=received,
        )

    def _adapter(self, model: str) -> str | None:
        """The LoRA adapter that a request means by its model; None = the model itself. Raises ApiError."""
        own, adapters = self._config.model, self._front.adapters()
        if model != own and model not in adapters:
            message = f"this engine serves {', '.join(map(repr, (own, *adapters)))}, not {model[:200]!r}"
            raise ApiError(404, "model_not_found", message, param="model")
        return None if model == own else model

    def _is_work(self, request: ApiRequest, call: openai.Call) -> bool:
        """Whether it would keep the loop from others: a long prompt, or a schema never seen."""
        schema = call.sampling.schema
        return len(request.body) >= OFF_LOOP_BYTES or (schema is not None and not self._schemas.knows(schema))

    def _prepare(self, call: openai.Call) -> Tokens[int]:
        """The prompt's ids, once its schema has been compiled. Raises ApiError 400."""
        if call.sampling.schema is not None:
            try:
                self._schemas.check(call.sampling.schema)
            except SchemaError as error:
                raise invalid(str(error), "response_format", code="invalid_schema") from error
        return tokenise(self._tokenizer, call.prompt)

    async def _prepare_aside(
        self,
        executor: Executor,
        call: openai.Call,
        submit: Callable[[Tokens[int]], None],
        generation: Generation,
    ) -> None:
        loop = asyncio.get_running_loop()
        with _failing(generation):
            submit(await loop.run_in_executor(executor, self._prepare, call))

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

    def _seeded(self, call: openai.Call) -> Sampling:
        self._requests += 1
        seed = call.seed
        if seed is None:
            # Two requests without a seed must differ, two runs of the engine must not.
            key = f"{self._config.seed}/{self._requests}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        return replace(call.sampling, seed=seed & (1 << 63) - 1)

    def _models(self, _: ApiRequest, sink: Sink) -> None:
        own = self._config.model
        models = [
            {
                "id": name,
                "object": "model",
                "created": self._stamps.created(),
                "owned_by": "headrace",
                "max_model_len": self._config.max_model_len,
                "parent": None if name == own else own,
            }
            for name in (own, *self._front.adapters())
        ]
        answer_json(sink, {"object": "list", "data": models})

    def _tokenize(self, request: ApiRequest, sink: Sink) -> None:
        prompt = openai.parse_tokenize(request.body)
        if self._executor is not None and len(request.body) >= OFF_LOOP_BYTES:
            self._spawn(self._tokenize_aside(self._executor, request, sink, prompt))
        else:
            self._tell_tokens(request, sink, *components(self._tokenizer, prompt))

    async def _tokenize_aside(
        self, executor: Executor, request: ApiRequest, sink: Sink, prompt: openai.Prompt
    ) -> None:
        with answering(request, sink, echo(request)):
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(executor, components, self._tokenizer, prompt)
            self._tell_tokens(request, sink, *found)

    def _tell_tokens(
        self, request: ApiRequest, sink: Sink, ids: Tokens[int], found: Sequence[Component]
    ) -> None:
        digests = self._front.digests(ids, tenant(request.headers))
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
