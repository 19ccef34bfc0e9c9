"""slime's helpers for generate functions on the rollout's session: `post`, `get`, `get_model_url`.

A function written for slime posts to its router's `/generate`. Here that is a turn of the rollout's own engine, without
a network (`listener.py` offers the same over HTTP). A post to another address is a tool call that may be repeated, as
slime's own retries do. Outside of a run, as in a test of a plug-in, both are plain requests.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from schemas.errors import PlugPointError
from serve_apps.rollouts.generate.session import Prompt, Session, current_session, session_here
from slime_events.plugins.args_view import ROUTER, ArgsView

REQUEST_S = 60.0
_KEYS = {"input_ids", "text", "sampling_params", "return_logprob", "stream", "rid"}
"""Fields of /generate that are handled here. All others go to SGLang."""


class UnknownPath(PlugPointError):
    """The rollout's engine does not serve this path."""


def get_model_url(args: ArgsView, model_name: str, endpoint: str = "/generate") -> str:
    """Return the URL of a model that is served beside the trained one, or else of this rollout's engine, for `post`."""
    if (router := (getattr(args, "sglang_model_routers", None) or {}).get(model_name)) is not None:
        host, port = router
        return f"http://{host}:{port}{endpoint}"
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}{endpoint}"


async def post(
    url: str, payload: dict[str, Any] | None, max_retries: int = 60, headers: Mapping[str, str] | None = None
) -> Any:
    """Return the engine's answer if the URL is the router's, else that of a recorded POST of JSON.

    `headers` are sent only outside of a run. Raises PlugPointError, ToolFailed; outside of a run the errors of urllib.
    """
    if session_here() is None and urlsplit(url).port != 0:  # port 0 is the address on a run's `args`
        return await post_json(url, payload or {}, max_retries, headers)
    session = current_session()
    if _is_router(url, session):
        return await answer(session, "POST", urlsplit(url).path, payload or {})
    arguments = {"url": url, "payload": payload or {}, "max_retries": max_retries}
    return await session.call(post_json, arguments, may_repeat=True)


async def get(url: str) -> Any:
    """Return the engine's answer if the URL is the router's, else that of a recorded GET. Raises the errors of
    `post`.
    """
    if session_here() is None and urlsplit(url).port != 0:
        return await get_json(url)
    session = current_session()
    if _is_router(url, session):
        return await answer(session, "GET", urlsplit(url).path, {})
    return await session.call(get_json, {"url": url}, may_repeat=True)


def _is_router(url: str, session: Session) -> bool:
    parts = urlsplit(url)
    return (parts.hostname, parts.port) == (ROUTER["sglang_router_ip"], session.router_port)


async def answer(session: Session, method: str, path: str, payload: object) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the answer of the rollout's engine to a request on one of SGLang's paths, as JSON. A generation is a turn.

    Raises UnknownPath, PlugPointError for an invalid payload, and the errors of `Session.generate`.
    """
    if method != "GET" and path == "/generate":
        return await _generate(session, payload)
    model = str(getattr(session.args, "hf_checkpoint", ""))
    if path in ("/health", "/health_generate"):
        return {}
    if path in ("/get_model_info", "/model_info"):
        return {"model_path": model, "tokenizer_path": model, "is_generation": True}
    if path == "/v1/models":
        return {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "slime-events"}]}
    raise UnknownPath(
        f"the rollout's engine does not answer {method} {path}: it has POST /generate, GET /health, /get_model_info "
        "and /v1/models; for chat messages use session.generate(messages)"
    )


async def _generate(session: Session, payload: object) -> dict[str, Any] | list[dict[str, Any]]:
    """Answer SGLang's /generate. A list of prompts gives a list."""
    if not isinstance(payload, dict):
        payload = {}
    prompt = payload.get("input_ids", payload.get("text"))
    if prompt is None or payload.get("stream"):
        raise PlugPointError("/generate needs input_ids or text here, and does not stream")
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return await _turn(session, prompt, payload.get("sampling_params"), payload)
    sampling = payload.get("sampling_params")
    each = sampling if isinstance(sampling, list) else [sampling] * len(prompt)
    if len(each) != len(prompt):
        raise PlugPointError(f"/generate got {len(prompt)} prompts and {len(each)} sampling_params")
    pairs = zip(prompt, each, strict=True)
    return await asyncio.gather(*(_turn(session, part, params, payload) for part, params in pairs))


async def _turn(
    session: Session, prompt: Prompt, sampling: Mapping[str, Any] | None, payload: dict[str, Any]
) -> dict[str, Any]:
    more = {name: value for name, value in payload.items() if name not in _KEYS and value is not None}
    turn = await session.generate(prompt, sampling, more)
    meta: dict[str, Any] = {"id": str(turn.index), **turn.meta_info}
    if payload.get("return_logprob"):
        pairs = zip(turn.log_probs, turn.tokens, strict=True)
        meta["output_token_logprobs"] = [(log_prob, token, None) for log_prob, token in pairs]
    return {"text": turn.text, "output_ids": turn.tokens, "meta_info": meta}


async def post_json(
    url: str, payload: dict[str, Any], max_retries: int, headers: Mapping[str, str] | None = None
) -> object:
    """Return a server's answer to JSON, as JSON or else as text. Retries every second, as slime does."""
    for attempt in range(1, max_retries + 1):
        try:
            return await asyncio.to_thread(_post_json, url, payload, dict(headers or {}))
        except (urllib.error.URLError, OSError):
            if attempt == max_retries:
                raise
        await asyncio.sleep(1.0)
    raise PlugPointError(f"max_retries is {max_retries}: {url} was never called")


async def get_json(url: str) -> object:
    """Return a server's answer, as JSON or else as text."""
    return await asyncio.to_thread(_answer, urllib.request.Request(url))


# A rollout that continues in an older log, or is replayed, repeats its recorded calls: both keep their name there.
post_json.__module__ = get_json.__module__ = "serve_apps.rollouts.generate.slime_compat"


def _post_json(url: str, payload: dict[str, Any], headers: dict[str, str]) -> object:
    sent = {"Content-Type": "application/json"} | headers
    return _answer(urllib.request.Request(url, json.dumps(payload).encode(), sent))


def _answer(request: urllib.request.Request) -> object:
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        body = answer.read().decode()
    try:
        return json.loads(body)
    except ValueError:
        return body
