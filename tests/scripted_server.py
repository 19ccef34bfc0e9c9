"""`ScriptedServer`: SGLang's HTTP interface without a model, for tests only.

Tokens are a function of (seed, absolute position), log-probs of (token, absolute position, weights, temperature).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.scripted_engine import mixed

VOCABULARY = 256
Spoil = Callable[[int, bytes], Iterable[bytes]]
"""Returns the bytes to send in place of the n-th message of a response."""


@dataclass
class Answers:
    """What the server says of itself, and how it behaves. refuses: the message of the next update."""

    checkpoint: str
    tokenize: Callable[[str], list[int]]
    server_info: dict[str, Any] = field(default_factory=dict)
    model_info: dict[str, Any] = field(default_factory=dict)
    seconds_per_step: float = 0.002
    refuses: str | None = None
    ignores_temperature: bool = False
    spoil: Spoil = lambda _, message: (message,)


class ScriptedServer:
    """Starts with weights called "default". Restart it with `kill` and `start`."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.port = answers, 0
        self.weights, self.loaded, self.requests = "default", list[str](), list[dict[str, Any]]()
        self.running: dict[str, asyncio.Event] = {}
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        routes = {
            ("GET", "/health_generate"): self._health,
            ("GET", "/model_info"): self._model_info,
            ("GET", "/server_info"): self._server_info,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/generate"): self._generate,
            ("POST", "/abort_request"): self._abort,
            ("POST", "/update_weights_from_disk"): self._update,
        }
        for (method, path), handler in routes.items():
            app.router.add_route(method, path, handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def kill(self) -> None:
        """End at once. The next start has the first weights again."""
        assert self._runner is not None
        for request in list(self._runner.server.connections):  # type: ignore[union-attr]
            if request.transport is not None:
                request.transport.abort()
        await self._runner.cleanup()
        self.weights, self.running = "default", {}

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weights} | self.answers.model_info)

    async def _server_info(self, _: web.Request) -> web.Response:
        known = {"model_path": self.answers.checkpoint, "dtype": "float32", "incremental_streaming_output": True}
        return web.json_response(known | self.answers.server_info)

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": self.answers.tokenize((await request.json())["prompt"])})

    async def _abort(self, request: web.Request) -> web.Response:
        if (event := self.running.get((await request.json())["rid"])) is not None:
            event.set()
        return web.Response()

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        files = list(Path(body["model_path"]).glob("*.safetensors"))
        reason = self.answers.refuses or (None if files else f"Cannot find any model weights with {body['model_path']}")
        if reason is None:
            assert not self.running, "responses are in progress"
            self.weights = body.get("weight_version") or self.weights
            self.loaded.append(body["model_path"])
        return web.json_response({"success": reason is None, "message": reason}, status=200 if reason is None else 400)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if not body.get("stream"):
            return web.json_response({"text": "", "output_ids": [0], "meta_info": self._scores(body)})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        event = self.running[body["rid"]] = asyncio.Event()
        try:
            async for number, message in self._messages(body, event):
                for part in self.answers.spoil(number, b"data: " + json.dumps(message).encode() + b"\n\n"):
                    await answer.write(part)
            await answer.write(b"data: [DONE]\n\n")
        finally:
            self.running.pop(body["rid"], None)
        return answer

    async def _messages(self, body: dict[str, Any], aborted: asyncio.Event) -> Any:
        params, prompt = body["sampling_params"], body["input_ids"]
        incremental = (self.answers.server_info | {}).get("incremental_streaming_output", True)
        tokens: list[int] = []
        pairs: list[list[Any]] = []
        reason, number = None, 0
        while reason is None:
            await asyncio.sleep(self.answers.seconds_per_step)
            sent = len(tokens)
            if aborted.is_set():
                reason = {"type": "abort", "message": "Aborted"}
            while reason is None and len(tokens) - sent < params["stream_interval"]:
                position = len(prompt) + len(tokens)
                token = int(mixed(params["sampling_seed"], position) * VOCABULARY)
                tokens.append(token)
                pairs.append([self._log_prob(token, position, params["temperature"]), token, None])
                if token in params["stop_token_ids"]:
                    reason = {"type": "stop", "matched": token}
                elif len(tokens) >= params["max_new_tokens"]:
                    reason = {"type": "length", "length": len(tokens)}
            first = sent if incremental else 0
            meta = {
                "id": body["rid"],
                "finish_reason": reason,
                "weight_version": self.weights,
                "completion_tokens": len(tokens),
                "output_token_logprobs": pairs[first:],
            }
            if reason is not None and tokens:
                meta["weight_versions"] = [{"version": self.weights, "start": 0, "end": len(tokens)}]
            yield number, {"text": "", "output_ids": tokens[first:], "meta_info": meta}
            number += 1

    def _scores(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, temperature = body["input_ids"], body["sampling_params"]["temperature"]
        meta: dict[str, Any] = {"id": body["rid"], "weight_version": self.weights}
        if (start := body.get("logprob_start_len")) is not None:
            meta["input_token_logprobs"] = [[self._log_prob(t, i, 1.0), t, None] for i, t in enumerate(ids)][start:]
        if wanted := body.get("token_ids_logprob"):
            scored = [[self._log_prob(token, len(ids), temperature), token, None] for token in wanted]
            meta["output_token_ids_logprobs"] = [scored]
        return meta

    def _log_prob(self, token: int, position: int, temperature: float) -> float:
        scale = temperature if temperature and not self.answers.ignores_temperature else 1.0
        return -mixed(token, position, 2, self.version) / scale

    @property
    def version(self) -> int:
        """The weight version by the name of the weights."""
        words = self.weights.rsplit(" ", 1)
        return int(words[-1]) if len(words) > 1 else 0
