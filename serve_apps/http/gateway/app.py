"""`gateway_app`: the HTTP routes of a run's gateway.

    POST /v1/runs/{run}/prompts                  submit prompts: a JSON object, a list of objects, or NDJSON
    POST /v1/runs/{run}/trajectories             submit prompts with finished answers
    POST /v1/runs/{run}/rewards                  submit rewards of samples that wait for them
    GET  /v1/runs/{run}/groups/{group}           state of a submitted group
    GET  /v1/runs/{run}/groups/{group}/events    changes of this state, as server-sent events
    POST /v1/runs/{run}/sessions                 open a session for an agent, see agent_routes.py
    GET  /v1/runs/{run}/sessions?open            open sessions of a source
    GET  /healthz                                answers 200 while the gateway runs

The gateway has no state besides the log: after a restart it answers as before.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, Protocol

import msgspec
from fastapi import Depends, FastAPI, Path, Request, Response
from fastapi.responses import StreamingResponse

from schemas.errors import SlimeEventsError
from schemas.inbox import OTHER_CONTENT, InboxFate, InboxReply
from schemas.submission import Submission
from serve_apps.http.gateway.admission import Admission
from serve_apps.http.gateway.agent_routes import add_agent_routes
from serve_apps.http.gateway.agents import AgentAccess
from serve_apps.http.gateway.asyncapi import asyncapi
from serve_apps.http.gateway.open_sessions import OpenSessions
from serve_apps.http.gateway.openapi import RunName, describe, documented
from serve_apps.http.gateway.refusals import Refused, refusals, says_more
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope, Sources
from serve_apps.http.gateway.streams import Streams
from serve_apps.http.gateway.submission import MEDIA_TYPES, submit
from slime_events.client.inbox import InboxClient
from slime_events.loop.prompts.outside import ITEMS
from slime_events.model.fates import fate_of
from storage.log import Readable

GroupName = Annotated[str, Path(description="Id of the group.")]


class GatewayRun(Protocol):
    """A run as a gateway uses it."""

    @property
    def name(self) -> str: ...

    async def send(self, data: bytes, sender: str, kind: str) -> InboxReply:
        """Send a message to the inbox on behalf of a source. kind: PROMPTS, TRAJECTORIES or REWARDS.

        Raises LogUnavailable, DeadlineExceeded.
        """

    async def max_bytes(self) -> int:
        """Return the limit of a message in bytes. Raises LogUnavailable."""

    def log(self) -> AbstractAsyncContextManager[Readable]:
        """Open the run's log. Raises StorageError."""


def gateway_app(
    run: GatewayRun, sources: Sources, settings: GatewaySettings, agents: AgentAccess | None = None
) -> FastAPI:
    """Return the app of one run's gateway. agents: sessions of the run; None: the app has no routes for agents."""
    app = FastAPI(title="slime-events gateway", version="1", docs_url=None, redoc_url=None)

    admission, streams = Admission(sources), Streams(settings.streams, settings.poll_s)

    def source(request: Request, run_name: str, scope: Scope | None = None) -> str:
        name = admission.by_bearer(request, scope)
        if run_name != run.name:
            raise Refused(404, f"no run {run_name}: this gateway serves run {run.name}")
        return name

    async def any_source(request: Request, run_name: RunName) -> str:
        return source(request, run_name)

    source_of = Annotated[str, Depends(any_source)]

    def taking(kind: str) -> Callable[..., Awaitable[Response]]:
        async def take(request: Request, run_name: RunName) -> Response:
            return await _take_in(request, run, settings, source(request, run_name, Scope(kind)), kind)

        return take

    for kind in ITEMS:
        app.post(f"/v1/runs/{{run_name}}/{kind}", **documented(kind))(taking(kind))

    @app.get("/v1/runs/{run_name}/groups/{group}", **documented("group"))
    async def group_fate(group: GroupName, sender: source_of) -> Response:
        async with run.log() as log:
            return _json(await fate_of(log, group, sender))

    @app.get("/v1/runs/{run_name}/groups/{group}/events", **documented("events"))
    async def group_events(request: Request, group: GroupName, sender: source_of) -> Response:
        streams.check(sender)
        async with run.log() as log:
            first = await fate_of(log, group, sender)

        look, holds = partial(_looked, run, group, sender), partial(admission.holds, request, sender)
        return StreamingResponse(streams.follow(sender, first, look, holds), media_type="text/event-stream")

    if agents is not None:
        add_agent_routes(app, agents, source, settings, OpenSessions(run.log, agents.keys))

    @app.get("/asyncapi.json", include_in_schema=False)
    async def over_nats() -> Response:
        return _json(asyncapi(run.name))

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return _json({"run": run.name})

    describe(app)
    return refusals(app, settings)


async def _take_in(request: Request, run: GatewayRun, settings: GatewaySettings, sender: str, kind: str) -> Response:
    """Submit the prompts, trajectories or rewards of a body."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in MEDIA_TYPES:
        problem = f"content-type {media} is not supported" if media else "content-type is missing"
        raise Refused(415, f"{problem}: send {' or '.join(MEDIA_TYPES)}")
    if says_more(request, settings.max_body):
        raise Refused(413, f"a request is limited to {settings.max_body:,} bytes: split it into several requests")

    inbox = InboxClient(partial(run.send, sender=sender, kind=kind), await run.max_bytes(), again_s=())
    key = request.headers.get("idempotency-key")
    taken = await submit(request.stream(), inbox, media=media, key=key, most=settings.max_body, kind=kind)
    if taken.errors:  # the answer has all of them, the refusal log only the first
        first = taken.errors[0]
        request.state.why = f"{taken.refused} of {taken.refused + taken.accepted}, line {first.line}: " + ": ".join(
            filter(None, (first.field, first.message))
        )
    return _json(taken, _status(taken))


def _status(taken: Submission) -> int:
    """Return the HTTP status: 409 if the run already has the key of every item with different content."""
    if not taken.errors:
        return 202
    conflicts = all(error.message.startswith(OTHER_CONTENT) for error in taken.errors)
    return 409 if conflicts and not taken.accepted else 422


async def _looked(run: GatewayRun, group: str, sender: str) -> InboxFate | None:
    """Return the state of a group; None if the log cannot be read now."""
    try:
        async with run.log() as log:
            return await fate_of(log, group, sender)
    except SlimeEventsError:
        return None


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
