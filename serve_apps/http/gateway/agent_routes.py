"""Routes of agents, and of the harnesses that run them.

                                           key                    returns or does
POST /v1/runs/{run}/sessions               source's token         opens a session of a rollout, returns its keys
GET  /v1/runs/{run}/sessions?open          source's token         this source's open sessions with their control keys
GET  /v1/sessions/{session}                control key            recorded turns, and turns in progress with their age
POST /v1/sessions/{session}/seal           control key            ends the session with a reward or an exit code
POST /v1/sessions/{key}/v1/...             agent's key, in path   turn: chat/completions, responses, messages, generate
POST /v1/...                               agent's key, in header same; the key is a bearer token or in x-api-key
"""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from fastapi import FastAPI, Path, Request, Response
from fastapi.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from schemas.errors import (
    EngineError,
    EventTooLarge,
    LogUnavailable,
    PlugPointError,
    SlimeEventsError,
    StorageError,
    UnwritableEvent,
)
from schemas.outside_json import read_json
from serve_apps.http.gateway.agents import AgentAccess, Capability
from serve_apps.http.gateway.open_sessions import OpenSessions
from serve_apps.http.gateway.openapi import RunName, documented
from serve_apps.http.gateway.refusals import AGAIN_S, Refused, read_body
from serve_apps.http.gateway.session_views import MOST_WAIT_S, SealWish, SessionWish, opened_session, session_view
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope

if TYPE_CHECKING:
    from serve_apps.rollouts.agents.agent_request import Dialect
    from serve_apps.rollouts.agents.live_session import Turn
    from serve_apps.rollouts.agents.sessions import Sessions

MOST_WISH = 1024 * 1024
"""Limit of a harness's request in bytes: its metadata becomes an event."""
QUIET_S = 15.0
"""Seconds without a token after which a stream gets a comment, so that proxies keep the connection open."""
WishT = TypeVar("WishT")
SessionName = Annotated[str, Path(description="Name of the session.")]


def add_agent_routes(
    app: FastAPI,
    agents: AgentAccess,
    source: Callable[[Request, str, Scope], str],
    settings: GatewaySettings,
    in_log: OpenSessions,
) -> None:
    """Add the routes to the app.

    source: returns the source of a request, if its bearer token allows the scope; raises Refused. in_log: the run's
    sessions as its log has them, also while the run is off.
    """

    async def live() -> "Sessions":
        """Return the run's sessions. Raises Refused if the run has ended, LogUnavailable if it is off for now."""
        try:
            return await agents.desk.sessions()
        except LogUnavailable:
            await in_log.check_over()
            raise

    @app.post("/v1/runs/{run_name}/sessions", **documented("open_session"))
    async def open_session(request: Request, run_name: RunName) -> Response:
        sender = source(request, run_name, Scope.SESSIONS)
        wish = _decoded(await read_body(request, MOST_WISH), SessionWish)
        sessions, key = await live(), request.headers.get("idempotency-key")
        with _refusing():
            wait_s = min(max(wish.wait_s, 0.0), MOST_WAIT_S)
            session, prompt = await sessions.open(sender, group=wish.group, wait_s=wait_s, key=key)
        url = f"{request.url.scheme}://{request.headers['host']}"
        return _json(opened_session(session, prompt, agents.keys, sessions.setup.rules.limits, url), 201)

    @app.get("/v1/runs/{run_name}/sessions", **documented("sessions"))
    async def open_sessions(request: Request, run_name: RunName) -> Response:
        sender = source(request, run_name, Scope.SESSIONS)
        if "open" not in request.query_params:
            raise Refused(400, "only open sessions can be listed: request /sessions?open")
        return _json(await in_log.of(sender, request.query_params.get("after", "")))

    @app.get("/v1/sessions/{session}", **documented("session"))
    async def session_state(request: Request, session: SessionName) -> Response:
        _controls(agents, request, session)
        sessions = await live()
        with _refusing():
            return _json(session_view(await sessions.state(session), time.time_ns()))

    @app.post("/v1/sessions/{session}/seal", **documented("seal_session"))
    async def seal_session(request: Request, session: SessionName) -> Response:
        from serve_apps.rollouts.agents.sealing import verdict_of

        _controls(agents, request, session)
        wish = _decoded(await read_body(request, MOST_WISH, "send less metadata"), SealWish)
        sessions = await live()
        with _refusing():
            wish.check((await sessions.state(session)).leaves())
            await sessions.seal(session, verdict_of(wish.reward, wish.rewards, wish.exit_code, wish.metadata))
            return _json(session_view(await sessions.state(session), time.time_ns()))

    _add_dialects(app, agents, settings)


def _add_dialects(app: FastAPI, agents: AgentAccess, settings: GatewaySettings) -> None:
    from serve_apps.rollouts.agents.dialects import MESSAGES, PATHS

    def add(path: str, dialect: "Dialect") -> None:
        turn = TurnRoute(agents, dialect, settings)
        paths = (path, f"/v1/sessions/{{key}}{path}")
        app.router.routes[:0] = [Route(path, turn, methods=["POST"], include_in_schema=False) for path in paths]

    async def count(request: Request) -> Response:
        async def answer(session: str) -> Response:
            sessions = await agents.desk.sessions()
            body = await _agent_body(request, sessions, settings)
            return _json(MESSAGES.counted(await sessions.count_tokens(session, MESSAGES, request.url.path, body)))

        return await _answered(MESSAGES, request, agents, answer)

    async def models(request: Request) -> Response:
        _session_of(agents, request)
        model = {"id": "default", "object": "model", "created": 0, "owned_by": "slime-events"}
        return _json({"object": "list", "data": [model]})

    for path, dialect in PATHS.items():
        add(path, dialect)
    for prefix in ("", "/v1/sessions/{key}"):
        app.post(f"{prefix}/v1/messages/count_tokens", include_in_schema=False)(count)
        app.get(f"{prefix}/v1/models", include_in_schema=False)(models)


class TurnRoute:
    """The route of agents' turns, an ASGI app. It bypasses FastAPI and comes before all other routes, so that a client
    gets its first token earlier.
    """

    def __init__(self, agents: AgentAccess, dialect: "Dialect", settings: GatewaySettings) -> None:
        self._agents, self._dialect, self._settings = agents, dialect, settings

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await _answered(self._dialect, request, self._agents, partial(self._answer, request))
        await response(scope, receive, send)

    async def _answer(self, request: Request, session: str) -> Response:
        sessions, dialect = await self._agents.desk.sessions(), self._dialect
        body = await _agent_body(request, sessions, self._settings)
        turn = await sessions.open_turn(session, dialect, request.url.path, body, request.headers)
        if turn.request.stream:
            return StreamingResponse(_streamed(turn, dialect), media_type="text/event-stream")
        return _json(dialect.whole(turn.request, await turn.answer()))


async def _agent_body(request: Request, sessions: "Sessions", settings: GatewaySettings) -> bytes:
    """Read a body. Raises Refused if it is larger than the context can be."""
    rules = sessions.setup.rules
    instead = f"a larger one does not fit in the context of {rules.longest:,} tokens"
    return await read_body(request, min(settings.max_body, rules.most_bytes), instead)


async def _streamed(turn: "Turn", dialect: "Dialect") -> AsyncIterator[bytes]:
    """Yield the events of an answer while it is generated. The last events come once the turn is in the log."""
    encoder = dialect.stream(turn.request, turn.id, turn.created, len(turn.prompt))
    yield encoder.begin()
    try:
        async for parts in turn.parts(QUIET_S):
            if not parts:
                yield b": still there\n\n"
            for part in parts:
                yield encoder.part(part)
        answer = await turn.answer()
    except Exception as error:  # _reason raises errors that it does not know
        status, message, _ = _reason(error)
        yield encoder.fail(status, message)
        return
    yield encoder.end(answer)


async def _answered(
    dialect: "Dialect", request: Request, agents: AgentAccess, answer: Callable[[str], Awaitable[Response]]
) -> Response:
    """Return an agent's answer, or a refusal in the form of its API."""
    from serve_apps.rollouts.agents.agent_request import BadField

    try:
        return await answer(_session_of(agents, request))
    except BadField as error:
        request.state.why = f"{error.field}: {error.message}"
        return _json(dialect.refusal(400, error.message, error.field), 400)
    except Exception as error:  # _reason raises errors that it does not know
        status, message, again_s = _reason(error)
        request.state.why = message
        response = _json(dialect.refusal(status, message), status)
        if again_s is not None:
            response.headers["Retry-After"] = f"{again_s:.0f}"
        return response


def _reason(error: Exception) -> tuple[int, str, float | None]:
    """Return HTTP status, message and seconds until a retry for an error. Raises the error again if it is unknown."""
    from serve_apps.rollouts.agents.live_session import TurnRefused

    match error:
        case TurnRefused():
            return error.status, str(error), error.again_s
        case Refused():
            return error.status, str(error), None
        case EventTooLarge():
            return 413, str(error), None
        case UnwritableEvent():
            return 400, str(error), None
        case StorageError():
            return 503, str(error), AGAIN_S
        case EngineError():
            return 502, str(error), None
        case SlimeEventsError():
            return 500, str(error), None
    raise error


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn errors of sessions into refusals for a harness."""
    from serve_apps.rollouts.agents.live_session import TurnRefused

    try:
        yield
    except TurnRefused as error:
        again = {} if error.again_s is None else {"Retry-After": f"{error.again_s:.0f}"}
        raise Refused(error.status, str(error), again) from error
    except PlugPointError as error:
        raise Refused(422, str(error)) from error


def _session_of(agents: AgentAccess, request: Request) -> str:
    """Return the session of an agent's request, by the key in its path, bearer token or x-api-key. Raises Refused.

    A key in the query is not read, because proxies log queries.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    session = agents.keys.session_of(request.path_params.get("key") or bearer)
    if session is None:
        message = "no valid session key: use the session's `base_url` as base URL, or its `agent_key` as API key"
        raise Refused(401, message)
    request.state.who = f"the agent of {session}"
    return session


def _controls(agents: AgentAccess, request: Request, session: str) -> None:
    """Raise Refused if the request does not have the session's control key."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not agents.keys.check(session, token, Capability.CONTROL):
        message = "no valid control key: send the session's control key as `Authorization: Bearer <key>`"
        raise Refused(401, message, {"WWW-Authenticate": "Bearer"})
    request.state.who = f"the harness of {session}"


def _decoded(body: bytes, kind: type[WishT]) -> WishT:
    """Decode JSON; an empty body counts as an empty object. Raises Refused."""
    try:
        return read_json(body or b"{}", kind)
    except msgspec.ValidationError as error:
        raise Refused(422, str(error)) from error
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
