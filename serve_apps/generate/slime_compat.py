"""slime's helpers for generate functions on the rollout's session: `post`, `GenerateState`, `get_model_url`.

A function written for slime posts to its router's `/generate`; here that is a turn of the rollout's own engine, without
a network. A post to another address is a tool call that may be repeated, as slime's own retries do.
"""

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import urlsplit

from schemas.errors import PlugPointError
from serve_apps.engine.engine import sampling_params
from serve_apps.generate.session import Session, current_session
from slime_events.plugins.args_view import ROUTER

REQUEST_S = 60.0
_KEYS = {"input_ids", "text", "sampling_params", "return_logprob", "stream", "rid"}


class GenerateState:
    """The part of slime's global generation state that a generate function may know."""

    processor = None
    aborted = False
    semaphore = nullcontext()
    """Open: the engine bounds its own concurrency."""

    def __init__(self, args: Any) -> None:
        session = current_session()
        self.args, self.tokenizer = args, session.tokenizer
        self.sampling_params = sampling_params(session.sampling)

    def dp_rank_context(self) -> AbstractContextManager[int]:
        """Nothing to balance: a rollout has one engine."""
        return nullcontext(0)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"GenerateState has no {name!r} here: slime's rollout loop keeps it, and a run has a loop of its own"
        )


def get_model_url(args: Any, model_name: str, endpoint: str = "/generate") -> str:
    """The URL that `post` takes for this rollout's engine; there is one model."""
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}{endpoint}"


async def post(url: str, payload: dict[str, Any] | None, max_retries: int = 60, headers: Any = None) -> Any:
    """A turn where the URL is the router's, else a recorded POST of JSON. Raises PlugPointError, ToolFailed."""
    session = current_session()
    if not _is_router(url):
        arguments = {"url": url, "payload": payload or {}, "max_retries": max_retries}
        return await session.call(post_json, arguments, may_repeat=True)
    if (path := urlsplit(url).path) != "/generate":
        raise PlugPointError(f"the engine answers /generate here, not {path}")
    return await _generate(session, payload or {})


async def get(url: str) -> Any:
    """A recorded GET of JSON. Raises PlugPointError for the router, ToolFailed."""
    if _is_router(url):
        raise PlugPointError(f"there is no router here: the engine answers /generate of `post`, not GET {url}")
    return await current_session().call(get_json, {"url": url}, may_repeat=True)


def _is_router(url: str) -> bool:
    parts = urlsplit(url)
    return (parts.hostname, parts.port) == (ROUTER["sglang_router_ip"], ROUTER["sglang_router_port"])


async def _generate(session: Session, payload: dict[str, Any]) -> dict[str, Any]:
    """SGLang's /generate, of one prompt."""
    if unknown := sorted(payload.keys() - _KEYS):
        raise PlugPointError(f"/generate takes {', '.join(sorted(_KEYS))} here, not {', '.join(unknown)}")
    prompt = payload.get("input_ids", payload.get("text"))
    if prompt is None or payload.get("stream"):
        raise PlugPointError("/generate needs input_ids or text here, and does not stream")
    turn = await session.generate(prompt, payload.get("sampling_params"))
    meta: dict[str, Any] = {"id": str(turn.index), **turn.meta_info}
    if payload.get("return_logprob"):
        pairs = zip(turn.log_probs, turn.tokens, strict=True)
        meta["output_token_logprobs"] = [(log_prob, token, None) for log_prob, token in pairs]
    return {"text": turn.text, "output_ids": turn.tokens, "meta_info": meta}


async def post_json(url: str, payload: dict[str, Any], max_retries: int) -> Any:
    """A server's answer to JSON, as JSON or else as text; retried each second, as slime does."""
    for attempt in range(1, max_retries + 1):
        try:
            return await asyncio.to_thread(_post_json, url, payload)
        except (urllib.error.URLError, OSError):
            if attempt == max_retries:
                raise
        await asyncio.sleep(1.0)
    raise PlugPointError(f"max_retries is {max_retries}: {url} was never called")


async def get_json(url: str) -> Any:
    """A server's answer, as JSON or else as text."""
    return await asyncio.to_thread(_answer, urllib.request.Request(url))


def _post_json(url: str, payload: dict[str, Any]) -> Any:
    return _answer(urllib.request.Request(url, json.dumps(payload).encode(), {"Content-Type": "application/json"}))


def _answer(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        body = answer.read().decode()
    try:
        return json.loads(body)
    except ValueError:
        return body
