"""`HttpEngine`: an SGLang server that runs already, as an `Engine`. The run neither starts nor ends it.

    start      -> wait until it answers, compare its model with the run's, try one response
    generate   -> /generate as a stream; each message says which weights made its tokens
    new weights -> abort the responses, load (/update_weights_from_disk), continue them from their last tokens

The server reads weights from the folder of the version, by the same path as this process. It gets a name of the
weights that no other client uses. A message with another name shows that the server was started again, or that
somebody else loaded weights: the engine is lost then, and the next one loads the run's weights before it generates.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from schemas.doc import doc
from schemas.errors import DeadlineExceeded, EngineError, RequestRefused, SlimeEventsError
from schemas.rollouts import Sampling, StopReason
from serve_apps.engines.engine import Delta, GenerateRequest, LogProbs, Tokens
from serve_apps.engines.external.served_model import (
    TEXT,
    ModelInfo,
    RunModel,
    ServedModel,
    end_tokens_of,
    mismatches,
    other_tokenizer,
    read_info,
)
from serve_apps.engines.external.sglang_server import SglangServer
from serve_apps.engines.external.steps import StepReader
from serve_apps.engines.response import Response
from serve_apps.engines.scores import score
from serve_apps.engines.weight_shapes import misfit, shapes_in
from slime_events.core.config.engine import message_tokens
from slime_events.plugins.tokenizer import load_tokenizer

ANSWER_S = 10.0
UPDATE_S = 600.0
LOOK_S = 1.0
"""Seconds between tries to reach a server that does not answer yet."""
ABORT_S = 0.1
"""Seconds between requests to abort: SGLang ignores one that comes before the request itself."""
HEARD_S = 30.0
"""Seconds without a token of any response after which a health check generates one."""
WHOLE_INTERVAL = 128
"""Tokens between two messages of a server that repeats all tokens of a response in each."""


@dataclass(eq=False, slots=True)
class _Call:
    """A response in progress."""

    rid: Annotated[str, doc("The request's name at the server.")] = ""
    is_aborted: Annotated[bool, doc("By the caller, so that it must not continue.")] = False


class HttpEngine:
    """One server (an `Engine`). `name` identifies this engine and makes the names of its weights and requests.

    `chunk` is the number of tokens of a sample after which its progress is appended.
    """

    def __init__(self, url: str, model: RunModel, *, version: int = 0, name: str = "", chunk: int = 64) -> None:
        self._server, self._model, self._intervals = SglangServer(url), model, (message_tokens(chunk), WHOLE_INTERVAL)
        self._name = f"{name or 'engine'} {secrets.token_hex(4)}"
        self.version, self.tokens_generated, self.was_killed = version, 0, False
        self._weights = ""
        self._served: ServedModel | None = None
        self._failure: str | None = "the engine has not been started"
        self._numbers = itertools.count()
        self._calls: dict[str, _Call] = {}
        self._active: set[_Call] = set()
        self._ended = asyncio.Event()
        self._loaded = asyncio.Event()
        self._update, self._tasks = asyncio.Lock(), set[asyncio.Task[None]]()
        self._heard = 0.0

    async def start(self, deadline_s: float) -> None:
        """Wait until the server generates, and compare it with the run. Raises EngineError, DeadlineExceeded."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._wait_until_up()
                await self._compare()
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self._server.url} did not answer as an SGLang server within {deadline_s:g} s"
            ) from None
        except BaseException:  # cancelled too: no connection stays open
            await self._server.close()
            raise

    async def stop(self) -> None:
        """End the responses, not the server. Safe to call twice."""
        self._fail("the engine was stopped")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Generate: see `Engine.generate`. Raises RequestRefused if SGLang refuses the request."""
        call, ended = _Call(), False
        self._calls[request.rid] = call
        failed = f"response {request.rid} was not finished"
        try:
            while not ended:
                response = self._response(request)
                if (last := response.ended()) is not None:
                    yield last
                    return
                await self._loaded.wait()
                self._check(failed)
                self._active.add(call)
                try:
                    async for delta in self._deltas(call, request, response, failed):
                        ended = delta.finish is not None
                        self.tokens_generated += len(delta.tokens)
                        yield delta
                finally:
                    self._active.discard(call)
                    self._ended.set()
                request = replace(request, resume=response.tokens)
        finally:
            if self._calls.get(request.rid) is call:
                del self._calls[request.rid]

    async def score(self, request: GenerateRequest, tokens: Tokens) -> LogProbs:
        """Score: see `Engine.score`. A request that SGLang refuses raises RequestRefused with its reason."""
        failed, call = f"response {request.rid} was not scored", _Call(self._new_id())
        await self._loaded.wait()
        self._check(failed)
        self._active.add(call)
        try:
            return await score(request, tokens, partial(self._ask, call.rid))
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise EngineError(f"{failed}: the answer of {self._server.url} is not SGLang's: {error!r:.200}") from error
        finally:
            self._active.discard(call)
            self._ended.set()

    async def update_weights(self, folder: str, version: int) -> float:
        """Load weights: see `Engine.update_weights`. Running responses continue from their last tokens.

        If the server refuses them, or does not answer, it is unknown which weights it has, and the engine is lost.
        """
        begun, failed = time.monotonic(), f"weights {version} from {folder} were not loaded by {self._server.url}"
        self._check(failed)
        try:
            if (reason := await asyncio.to_thread(self._misfit, folder)) is not None:
                raise EngineError(reason)
        except EngineError as error:
            raise EngineError(f"{failed}: {error}") from error
        async with self._update:
            self._loaded.clear()
            try:
                await self._end_calls()
                await self._load(folder, version)
            except (SlimeEventsError, TimeoutError) as error:
                reason = f"{failed}: {str(error) or f'its responses did not end within {UPDATE_S:g} s'}"
                self._fail(reason)
                raise EngineError(reason) from error
            except BaseException:  # cancelled in the middle: the weights of the server are unknown
                self._fail(f"{failed}: the update was cancelled")
                raise
            finally:
                self._loaded.set()
        return time.monotonic() - begun

    async def rest(self) -> None:
        """Raise EngineError: a server that runs already has its own devices, and a run with it takes no turns."""
        raise EngineError(f"{self._server.url} runs already: it does not rest")

    async def wake(self) -> None:
        """Do nothing, since the server never rests."""

    async def abort(self, rid: str) -> None:
        if (call := self._calls.get(rid)) is not None:
            call.is_aborted = True
            self._end(call)

    async def healthy(self) -> bool:
        """Return whether the server answers, still has this engine's weights, and generates."""
        if self._failure is not None:
            return False
        if self._update.locked():  # it loads, and may not answer meanwhile; an update has its own deadline
            return True
        try:
            info = await self._info()
            if not self._update.locked() and info.weight_version != self._weights:
                self._fail(self._other_weights(info.weight_version))
                return False
            if time.monotonic() - self._heard > HEARD_S:
                await self._server.get("/health_generate", 2 * ANSWER_S)
                self._heard = time.monotonic()
        except (EngineError, DeadlineExceeded):
            return False
        return self._failure is None

    async def _wait_until_up(self) -> None:
        while True:
            try:
                await self._server.get("/health_generate", 2 * ANSWER_S)
                return
            except (EngineError, DeadlineExceeded):
                await asyncio.sleep(LOOK_S)

    async def _compare(self) -> None:
        """Compare the server's model, tokenizer and log-probs with the run's. Raises EngineError with every reason."""
        where = self._server.url
        served = read_info(await self._server.get("/server_info", ANSWER_S), ServedModel, where)
        info = await self._info()
        reasons = list(mismatches(served, info, self._model))
        if reasons:
            raise EngineError(f"{where} cannot serve {self._model.checkpoint}: {'; '.join(reasons)}")
        tokenizer = await asyncio.to_thread(load_tokenizer, self._model.checkpoint)
        text = {"prompt": TEXT, "add_special_tokens": False}
        tokens = (await self._server.post("/tokenize", text, ANSWER_S)).get("tokens")
        if not isinstance(tokens, list) or (reason := other_tokenizer(tokens, tokenizer)) is not None:
            raise EngineError(f"{where} cannot serve {self._model.checkpoint}: {reason}")
        self._served, self._tokenizer = served, tokenizer
        self._end_tokens = end_tokens_of(self._model.checkpoint, tokenizer)
        self._weights, self._failure = info.weight_version, None
        self._heard = time.monotonic()
        self._loaded.set()
        await self._try()

    async def _try(self) -> None:
        """Make a short response, and compare log-probs of two temperatures. Raises EngineError."""
        prompt, sampling = np.array([1, 2, 3], np.int32), Sampling(max_new_tokens=2)
        request = GenerateRequest("try", prompt, sampling, 0)
        async for _ in self.generate(request):
            pass
        warm = replace(request, sampling=Sampling(max_new_tokens=2, temperature=0.5))
        warmer = replace(request, sampling=Sampling(max_new_tokens=2, temperature=0.75))
        if np.allclose(await self.score(warm, prompt), await self.score(warmer, prompt), atol=1e-7, rtol=0):
            raise EngineError(
                f"the log-probs of {self._server.url} do not depend on the temperature, and the trainer's do: start "
                "it without SGLANG_RETURN_ORIGINAL_LOGPROB"
            )
        self.tokens_generated = 0

    def _response(self, request: GenerateRequest) -> Response:
        return Response(replace(request, routes=False), request.rid, self._end_tokens, self._decode)

    async def _deltas(
        self, call: _Call, request: GenerateRequest, response: Response, failed: str
    ) -> AsyncIterator[Delta]:
        """Yield the deltas of one request to the server. Without a finish if it is ended for new weights."""
        assert self._served is not None
        call.rid, weights, version = self._new_id(), self._weights, self.version
        is_incremental, ended = self._served.incremental_streaming_output, False
        reader = StepReader(call.rid, is_incremental=is_incremental)
        fields = response.fields(rid=call.rid)
        fields["sampling_params"]["stream_interval"] = self._intervals[0 if is_incremental else 1]
        if call.is_aborted:
            self._end(call)
        try:
            stream = self._server.stream(fields)
            async with contextlib.aclosing(stream):  # type: ignore[type-var]
                async for data in stream:
                    step = reader.read(data)
                    self._check_weights(step.weights, weights, step.meta)
                    self._heard = time.monotonic()
                    for_weights = self._update.locked() and not call.is_aborted
                    is_aborted = call.is_aborted or for_weights
                    delta = response.add(step.meta, step.tokens, version=version, is_aborted=is_aborted)
                    ended = delta.finish is not None
                    if delta.finish is StopReason.ABORT and for_weights:
                        delta = replace(delta, finish=None, text=None, meta={})
                    yield delta
                    if ended:
                        return
            raise EngineError(f"{self._server.url} ended it without a finish reason")
        except (RequestRefused, ValueError) as error:  # SGLang, or its scheduler, refuses the request
            if call.is_aborted:
                yield response.last(StopReason.ABORT)
            elif not self._update.locked():
                raise RequestRefused(f"{failed}: {error}") from error
        except EngineError as error:
            raise EngineError(f"{failed}: {error}") from error
        finally:
            if not ended or response.is_cut:
                self._spawn(self._send_abort(call.rid))

    async def _ask(self, rid: str, part: str, /, **fields: Any) -> dict[str, Any]:
        answer = await self._server.post("/generate", {"rid": rid + part, **fields}, UPDATE_S)
        meta: dict[str, Any] = answer["meta_info"]
        self._check_weights(str(meta["weight_version"]), self._weights, meta)
        return meta

    async def _info(self) -> ModelInfo:
        return read_info(await self._server.get("/model_info", ANSWER_S), ModelInfo, self._server.url)

    def _misfit(self, folder: str) -> str | None:
        return misfit(shapes_in(Path(self._model.checkpoint)), shapes_in(Path(folder)))

    async def _load(self, folder: str, version: int) -> None:
        """Let the server load weights, and check that it has them. Raises EngineError, DeadlineExceeded."""
        name = f"{self._name} version {version}"
        await load(self._server, folder, name)
        if (info := await self._info()).weight_version != name:
            raise EngineError(self._other_weights(info.weight_version))
        self._weights, self.version = name, version

    async def _end_calls(self) -> None:
        """Abort all responses, and wait until they have ended. They continue later. Raises TimeoutError."""
        for call in self._active:
            self._end(call)
        async with asyncio.timeout(UPDATE_S):
            while self._active:
                self._ended.clear()
                await self._ended.wait()

    def _check_weights(self, weights: str, expected: str, meta: dict[str, Any]) -> None:
        """Raise EngineError, and give the engine up, if other weights than the expected made tokens."""
        spans = meta.get("weight_versions")
        others = [span.get("version") for span in spans if isinstance(span, dict)] if isinstance(spans, list) else []
        for other in (weights, *others):
            if other != expected:
                reason = self._other_weights(str(other))
                self._fail(reason)
                raise EngineError(reason)

    def _other_weights(self, weights: str) -> str:
        return (
            f"{self._server.url} has weights {weights!r:.100}, and this run gave it {self._weights!r}: it was started "
            "again, or another client loads weights into it. Only one run may use a server"
        )

    def _end(self, call: _Call) -> None:
        """Abort a response until it has ended."""
        self._spawn(self._abort_until_ended(call, call.rid))

    async def _abort_until_ended(self, call: _Call, rid: str) -> None:
        while rid and call in self._active and call.rid == rid:
            await self._send_abort(rid)
            await asyncio.sleep(ABORT_S)

    async def _send_abort(self, rid: str) -> None:
        with contextlib.suppress(EngineError, DeadlineExceeded):
            await self._server.post("/abort_request", {"rid": rid}, ANSWER_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._failure is not None:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_id(self) -> str:
        # Fixed width: SGLang aborts by prefix of the id.
        return f"{self._name.replace(' ', '-')}-{next(self._numbers):012d}"

    def _decode(self, tokens: list[int], skip: bool) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=skip, spaces_between_special_tokens=False)

    def _check(self, failed: str) -> None:
        if self._failure is not None:
            raise EngineError(f"{failed}: {self._failure}")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._loaded.set()


async def load(server: SglangServer, folder: str, name: str | None = None) -> None:
    """Let a server load the weights in a folder, and call them `name`; None: their name stays.

    Raises EngineError with the server's reason, DeadlineExceeded.
    """
    body = {"model_path": folder, "load_format": "auto", "flush_cache": True}
    answer = await server.post("/update_weights_from_disk", body | ({"weight_version": name} if name else {}), UPDATE_S)
    if answer.get("success") is not True:
        raise EngineError(f"{server.url} refused them: {answer.get('message')!r:.500}")
