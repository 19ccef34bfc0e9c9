"""`tinker_app`: the routes of the SDK's clients, `/api/v1/...`.

A call that changes something is appended, and its answer is the id of a future. `retrieve_future` waits for its result
in the log. So if a gateway is killed, its clients retry, and any other gateway answers.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response

from schemas.commands import CommandKind
from schemas.errors import ConfigError
from schemas.outside_json import read_json
from serve_apps.http.gateway.admission import Admission
from serve_apps.http.gateway.refusals import Refused, read_body, refusals, says_more, whole_body
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope, Sources
from serve_apps.http.tinker import names
from serve_apps.http.tinker.bodies import (
    CreateModel,
    CreateSamplingSession,
    LoadWeights,
    OfModel,
    OptimStep,
    RetrieveFuture,
    SaveWeights,
    SaveWeightsForSampler,
    WeightsInfo,
)
from serve_apps.http.tinker.calls import PROTOBUF, Calls, json_response
from serve_apps.http.tinker.sampling import SampleRequest
from serve_apps.http.tinker.wire import PassRequest, call_at
from serve_apps.rollouts.agents.off_loop import off_loop

ROOT = "/api/v1"
MOST_CALL = 256 * 1024
"""Limit of a JSON call in bytes, without the tokens of a prompt."""
BEGIN = 256
"""Bytes at the beginning of a pass that contain its model and number."""
BYTES_OF_A_TOKEN = 16
"""Most bytes of a token in JSON."""
KEY_PREFIX = "tml-"
"""Prefix that the SDK requires of a key; the rest of the key is a source's token."""
NO_LORA = "this server trains all weights: lora_config has no effect"
ALWAYS: dict[str, dict[str, Any]] = {
    "client/config": {},  # the SDK's own defaults
    "client/dynamic_config": {},
    "session_heartbeat": {"type": "session_heartbeat"},
    "sessions/{session}/finish": {},
    "telemetry": {"status": "accepted"},  # not stored
}
"""Routes with a constant answer."""
REFUSED = {
    "save_weights_external": "weights are already in Hugging Face's format: see `weights` in the run's folder",
    "copy_weights": "copy the folder of the version: see `slime-events show`",
    "create_custom_loss": "use forward_backward_custom, which computes a loss at the client",
}
"""Routes that this server does not support, and the alternative."""
NUMBERED = {
    "optim_step": CommandKind.OPTIM_STEP,
    "load_weights": CommandKind.LOAD_WEIGHTS,
    "save_weights": CommandKind.SAVE_WEIGHTS,
    "save_weights_for_sampler": CommandKind.SAVE_WEIGHTS_FOR_SAMPLER,
}
"""Routes whose calls have a number among the calls of their model."""
Handle = Callable[[Any, str], Awaitable[Response]]


def tinker_app(calls: Calls, sources: Sources, settings: GatewaySettings) -> FastAPI:
    """Return the app of one run."""
    app = FastAPI(title="slime-events tinker", version="1", docs_url=None, redoc_url=None, openapi_url=None)

    admission = Admission(sources)

    def source(request: Request) -> None:
        key = request.headers.get("x-api-key", "")
        invalid = Refused(401, "no valid key: set TINKER_API_KEY to the key that the run printed")
        token = key.removeprefix(KEY_PREFIX) if key.startswith(KEY_PREFIX) else ""
        request.state.source = admission.of(request, token, Scope.TINKER, invalid)

    @app.get(f"{ROOT}/healthz")
    async def healthz() -> Response:
        return json_response({"status": "ok"})

    router = APIRouter(prefix=ROOT, dependencies=[Depends(source)])
    for route, answer in ALWAYS.items():
        router.post(f"/{route}")(partial(_always, answer))
    for route, why in REFUSED.items():
        router.post(f"/{route}")(partial(_refuse, f"{route} is not supported: {why}"))
    _about_the_run(router, calls)
    _commands(router, calls, settings.max_body)
    app.include_router(router)
    refusals(app, settings)

    @app.exception_handler(ConfigError)
    async def invalid(_: Request, error: ConfigError) -> Response:
        return json_response({"error": str(error)}, 400)

    return app


def _about_the_run(router: APIRouter, calls: Calls) -> None:
    served = calls.served

    @router.get("/get_server_capabilities")
    async def capabilities() -> Response:
        model = {"model_name": served.name, "max_context_length": served.longest, "trainable": True, "sampleable": True}
        return json_response({"supported_models": [model]})

    @router.post("/create_session")
    async def create_session() -> Response:
        session = {"type": "create_session", "session_id": names.new_session(), "info_message": NO_LORA}
        return json_response(session)

    @router.get("/samplers/{sampler}")
    async def get_sampler(sampler: str) -> Response:
        names.version_of(sampler)
        return json_response({"sampler_id": sampler, "base_model": served.name, "model_path": None})


def _commands(router: APIRouter, calls: Calls, most: int) -> None:
    """Add the routes of commands. most: limit of a request in bytes."""
    handled: dict[str, tuple[type[msgspec.Struct], Handle]] = {
        "create_model": (CreateModel, calls.create),
        "get_info": (OfModel, calls.info),
        "weights_info": (WeightsInfo, calls.weights_info),
        "optim_step": (OptimStep, calls.optim_step),
        "load_weights": (LoadWeights, calls.load),
        "save_weights": (SaveWeights, calls.save_weights),
        "save_weights_for_sampler": (SaveWeightsForSampler, calls.save_for_sampler),
        "create_sampling_session": (CreateSamplingSession, calls.sampling_session),
        "asample": (SampleRequest, calls.sample),
        "retrieve_future": (RetrieveFuture, calls.retrieve),
    }
    of_sample = MOST_CALL + BYTES_OF_A_TOKEN * calls.served.longest
    for route, (kind, handle) in handled.items():
        bytes_ = min(most, of_sample if kind is SampleRequest else MOST_CALL)
        router.post(f"/{route}")(partial(_json_call, route, calls, kind, handle, bytes_))

    @router.post("/forward_backward")
    async def forward_backward(request: Request) -> Response:
        if request.headers.get("content-type") != PROTOBUF or "content-encoding" in request.headers:
            raise Refused(415, f"the body must be {PROTOBUF} and not compressed")
        body = await _pass_body(request, calls, most)
        pass_, source = await off_loop(len(body), partial(PassRequest, body)), request.state.source
        kind = CommandKind.FORWARD_BACKWARD if pass_.backward else CommandKind.FORWARD
        async with _numbered(calls, OfModel(model_id=pass_.model_id, seq_id=pass_.number), kind, source):
            return await calls.run_pass(pass_, source)


async def _pass_body(request: Request, calls: Calls, most: int) -> bytes:
    """Read the body of a pass. If it is too large, take the number in its first bytes, and raise Refused."""
    begin = bytearray()

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in request.stream():
            begin.extend(piece[: BEGIN - len(begin)] if len(begin) < BEGIN else b"")
            if len(begin) >= BEGIN and says_more(request, most):
                raise Refused(413, f"a body is limited to {most:,} bytes: send fewer datums")
            yield piece

    try:
        return await whole_body(pieces(), most, "send fewer datums")
    except Refused as error:
        if (place := call_at(bytes(begin))) is not None:
            call = OfModel(model_id=place[0], seq_id=place[1])
            await calls.refuse(call, CommandKind.FORWARD, request.state.source, str(error))
        raise


async def _json_call(
    route: str, calls: Calls, kind: type[msgspec.Struct], handle: Handle, most: int, request: Request
) -> Response:
    data, source = await read_body(request, most), request.state.source
    async with _numbered(calls, _call_of(data), NUMBERED.get(route), source):
        try:
            body = read_json(data, kind)
        except msgspec.DecodeError as error:
            raise Refused(400, f"{kind.__name__}: {error}") from error
        return await handle(body, source)


@contextlib.asynccontextmanager
async def _numbered(calls: Calls, call: OfModel | None, kind: CommandKind | None, source: str) -> AsyncIterator[None]:
    """Take the number of a call that is refused inside."""
    try:
        yield
    except (Refused, ConfigError) as error:
        if call is not None and kind is not None:
            await calls.refuse(call, kind, source, str(error))
        raise


def _call_of(data: bytes) -> OfModel | None:
    """Return model and number of a body whose other fields may be invalid; None if the body has no model.

    The body is decoded by `json`, because msgspec refuses lone surrogates.
    """
    try:
        return msgspec.convert(json.loads(data), OfModel)
    except (ValueError, RecursionError):  # errors of msgspec are ValueErrors
        return None


async def _always(answer: dict[str, Any], request: Request) -> Response:
    return json_response(answer)


async def _refuse(message: str, request: Request) -> Response:
    raise Refused(400, message)
