"""The routes of agents, and of the harnesses that run them.

POST /v1/runs/{run}/sessions               by a source: a rollout to make, with its keys
GET  /v1/runs/{run}/sessions?open          by a source: its own open sessions, with their control keys
GET  /v1/sessions/{session}                by its control key: turns, open turns and their age
POST /v1/sessions/{session}/seal           by its control key: its end, with a reward or an exit code
POST /v1/sessions/{key}/v1/...             an agent's turns: chat/completions, responses, messages, generate
POST /v1/...                               the same, the key as a bearer token or as x-api-key
"""

import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
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
from serve_apps.agents.keys import Capability
from serve_apps.gateway.agents import AgentAccess
from serve_apps.gateway.open_sessions import OpenSessions
from serve_apps.gateway.openapi import documented
from serve_apps.gateway.refusals import AGAIN_S, Refused, read_body
from serve_apps.gateway.session_views import MOST_WAIT_S, SealWish, SessionWish, opened_session, session_view
from serve_apps.gateway.settings import GatewaySettings
from serve_apps.gateway.sources import Scope

CLIENT_LENGTH = 120
"""Characters of a client's User-Agent that are recorded."""
MOST_WISH = 1024 * 1024
"""Bytes of what a harness asks for, or says of a session: its metadata becomes an event."""
QUIET_S = 15.0
"""Without a token, after which a stream gets a comment, so that nobody between takes it for dead."""
WishT = TypeVar("WishT")


def add_agent_routes(
    app: FastAPI,
    agents: AgentAccess,
    source: Callable[[Request, str, Scope], str],
    settings: GatewaySettings,
    known: OpenSessions,
) -> None:
    """source: who a request is of, by its bearer token, which has to be for this; raises Refused. known: sessions of
    the run by its log.
    """

    async def live() -> Any:
        """Raises Refused where the run has ended, LogUnavailable where it is off for now."""
        try:
            return await agents.desk.sessions()
        except LogUnavailable:
            await known.check_over()
            raise

    @app.post("/v1/runs/{run_name}/sessions", **documented("open_session"))
    async def open_session(request: Request, run_name: str) -> Response:
        sender = source(request, run_name, Scope.SESSIONS)
        wish = _decoded(await read_body(request, MOST_WISH), SessionWish)
        sessions, key = await live(), request.headers.get("idempotency-key")
        with _refusing():
            wait_s = min(max(wish.wait_s, 0.0), MOST_WAIT_S)
            session, asked = await sessions.open(sender, group=wish.group, wait_s=wait_s, key=key)
        url = f"{request.url.scheme}://{request.headers['host']}"
        return _json(opened_session(session, asked, agents.keys, sessions.setup.rules.limits, url), 201)

    @app.get("/v1/runs/{run_name}/sessions", **documented("sessions"))
    async def open_sessions(request: Request, run_name: str) -> Response:
        sender = source(request, run_name, Scope.SESSIONS)
        if "open" not in request.query_params:
            raise Refused(400, "sessions that are open are listed, and no others: ask for /sessions?open")
        return _json(await known.of(sender, request.query_params.get("after", "")))

    @app.get("/v1/sessions/{session}", **documented("session"))
    async def session_state(request: Request, session: str) -> Response:
        _controls(agents, request, session)
        sessions = await live()
        with _refusing():
            return _json(session_view(await sessions.state(session), time.time_ns()))

    @app.post("/v1/sessions/{session}/seal", **documented("seal_session"))
    async def seal_session(request: Request, session: str) -> Response:
        from serve_apps.agents.sealing import verdict_of

        _controls(agents, request, session)
        wish = _decoded(await read_body(request, MOST_WISH, "give less metadata"), SealWish)
        sessions = await live()
        with _refusing():
            wish.check((await sessions.state(session)).leaves())
            await sessions.seal(session, verdict_of(wish.reward, wish.rewards, wish.exit_code, wish.metadata))
            return _json(session_view(await sessions.state(session), time.time_ns()))

    _add_dialects(app, agents, settings)


def _add_dialects(app: FastAPI, agents: AgentAccess, settings: GatewaySettings) -> None:
    from serve_apps.agents.asked import Dialect
    from serve_apps.agents.dialects import MESSAGES, PATHS

    def add(path: str, dialect: Dialect) -> None:
        turn = TurnRoute(agents, dialect, settings)
        wheres = (path, f"/v1/sessions/{{key}}{path}")
        app.router.routes[:0] = [Route(where, turn, methods=["POST"], include_in_schema=False) for where in wheres]

    async def count(request: Request) -> Response:
        async def answer(session: str) -> Response:
            sessions = await agents.desk.sessions()
            body = await _agent_body(request, sessions, settings)
            requests, path = sessions.turns.requests.of(session), request.url.path
            asked, _ = await requests.read_off_loop(MESSAGES, path, body, MESSAGES.read_count)
            return _json(MESSAGES.counted(await sessions.count(session, asked, len(body))))

        return await _answered(MESSAGES, request, agents, answer)

    async def models(request: Request) -> Response:
        _session_of(agents, request)
        model = {"id": "default", "object": "model", "created": 0, "owned_by": "slime-events"}
        return _json({"object": "list", "data": [model]})

    for path, dialect in PATHS.items():
        add(path, dialect)
    for before in ("", "/v1/sessions/{key}"):
        app.post(f"{before}/v1/messages/count_tokens", include_in_schema=False)(count)
        app.get(f"{before}/v1/models", include_in_schema=False)(models)


class TurnRoute:
    """The route of agents' turns. Without FastAPI between, whose parameters no turn has, and before all other routes: a
    client waits for its first token.
    """

    def __init__(self, agents: AgentAccess, dialect: Any, settings: GatewaySettings) -> None:
        self._agents, self._dialect, self._settings = agents, dialect, settings

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        response = await _turn(self._agents, Request(scope, receive), self._dialect, self._settings)
        await response(scope, receive, send)


async def _turn(agents: AgentAccess, request: Request, dialect: Any, settings: GatewaySettings) -> Response:
    """One request of an agent."""
    from serve_apps.agents.live_session import TurnKey

    async def answer(session: str) -> Response:
        sessions = await agents.desk.sessions()
        body = await _agent_body(request, sessions, settings)
        asked, digest = await sessions.turns.requests.of(session).read_off_loop(dialect, request.url.path, body)
        asked = replace(asked, client=_client(request))
        named = request.headers.get("idempotency-key")
        retries = request.headers.get("x-stainless-retry-count", "0")
        is_retry = named is not None or (retries.isdecimal() and int(retries) > 0)
        turn_key = TurnKey(hashlib.sha256(b"key:" + named.encode()).hexdigest() if named else digest, is_retry)
        turn = await sessions.ask(session, asked, body, turn_key)
        if asked.stream:
            return StreamingResponse(_streamed(sessions.turns, turn, dialect), media_type="text/event-stream")
        known = await turn.end()
        return _json(dialect.whole(turn.request, sessions.turns.read_answer(turn, known)))

    return await _answered(dialect, request, agents, answer)


async def _agent_body(request: Request, sessions: Any, settings: GatewaySettings) -> bytes:
    """No more than the context has room for. Raises Refused."""
    rules = sessions.setup.rules
    instead = f"more than the context of {rules.longest:,} tokens has room for"
    return await read_body(request, min(settings.max_body, rules.most_bytes), instead)


def _client(request: Request) -> str:
    """What the agent's HTTP client calls itself, as people can read it."""
    named = request.headers.get("user-agent", "")
    return "".join(character for character in named if character.isprintable())[:CLIENT_LENGTH]


async def _streamed(turns: Any, turn: Any, dialect: Any) -> AsyncIterator[bytes]:
    """The answer as it comes. The terminal events are sent once the turn is in the log."""
    encoder = dialect.stream(turn.request, turn.id, turn.created, len(turn.prompt))
    yield encoder.begin()
    reader = turns.reader(turn)
    try:
        async for tokens, log_probs in turn.tokens(QUIET_S):
            if not tokens:
                yield b": still there\n\n"
            for part in reader.feed(tokens, log_probs):
                yield encoder.part(part)
        known = await turn.end()
    except Exception as error:
        status, message, _ = _reason(error)
        yield encoder.fail(status, message)
        return
    for part in reader.end(known.stop):
        yield encoder.part(part)
    yield encoder.end(turns.answer(turn, known, reader))


async def _answered(
    dialect: Any, request: Request, agents: AgentAccess, answer: Callable[[str], Awaitable[Response]]
) -> Response:
    """An agent's answer, or its refusal as clients of its API expect it."""
    from serve_apps.agents.asked import BadField

    try:
        return await answer(_session_of(agents, request))
    except BadField as error:
        request.state.why = f"{error.field}: {error.message}"
        return _json(dialect.refusal(400, error.message, error.field), 400)
    except Exception as error:
        status, message, again_s = _reason(error)
        request.state.why = message
        response = _json(dialect.refusal(status, message), status)
        if again_s is not None:
            response.headers["Retry-After"] = f"{again_s:.0f}"
        return response


def _reason(error: Exception) -> tuple[int, str, float | None]:
    """(status, what to say, when to come again) of what went wrong. Raises what nobody foresaw."""
    from serve_apps.agents.live_session import TurnRefused

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
def _refusing() -> Any:
    """What a harness cannot have is refused in the gateway's own words."""
    from serve_apps.agents.live_session import TurnRefused

    try:
        yield
    except TurnRefused as error:
        again = {} if error.again_s is None else {"Retry-After": f"{error.again_s:.0f}"}
        raise Refused(error.status, str(error), again) from error
    except PlugPointError as error:
        raise Refused(422, str(error)) from error


def _session_of(agents: AgentAccess, request: Request) -> str:
    """The session that an agent's request is of: by the key in its path, as a bearer token or as x-api-key; not in a
    query, which others write into their logs.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    session = agents.keys.session_of(request.path_params.get("key") or bearer)
    if session is None:
        raise Refused(
            401, "no key of a session: it is in the base URL, or the API key, that the session was opened with"
        )
    request.state.who = f"the agent of {session}"
    return session


def _controls(agents: AgentAccess, request: Request, session: str) -> None:
    """Raises Refused without the session's control key."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not agents.keys.check(session, token, Capability.CONTROL):
        wanted = "give the control key of the session as `Authorization: Bearer <key>`"
        raise Refused(401, wanted, {"WWW-Authenticate": "Bearer"})
    request.state.who = f"the harness of {session}"


def _decoded(body: bytes, kind: type[WishT]) -> WishT:
    """Of JSON; an empty body is an empty object. Raises Refused."""
    try:
        return read_json(body or b"{}", kind)
    except msgspec.ValidationError as error:
        raise Refused(422, str(error)) from error
    except msgspec.DecodeError as error:
        raise Refused(400, f"not JSON: {error}") from error


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
