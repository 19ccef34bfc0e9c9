"""`tinker_app`: the routes that the SDK's clients call, `/api/v1/...`.

A call that changes something is appended and answered with the id of a future; `retrieve_future` waits for its end in
the log. So a gateway that is killed costs a client a retry, and any other one answers instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Request, Response

from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.errors import ConfigError, Conflict
from schemas.event import Event
from serve_apps.gateway.refusals import Refused, refusals
from serve_apps.gateway.settings import GatewaySettings
from serve_apps.gateway.sources import Sources
from serve_apps.tinker import names
from serve_apps.tinker.answers import Answers, Failed
from serve_apps.tinker.asked import (
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
from serve_apps.tinker.sampling import SampleRequest, check, sample_requests
from serve_apps.tinker.wire import AskedPass, pass_output, sample_output
from slime_events.core.datums import pack_datums, unpack_datums
from slime_events.core.run.participant import Participant
from slime_events.loop.commands.batch import BEGINS, adam_params
from storage.blobs import BlobStore
from storage.log import append_all, once
from storage.payloads import offload_async

ROOT = "/api/v1"
KEY_PREFIX = "tml-"
"""The SDK takes no key without it; ours is a source's token after it."""
PROTOBUF = "application/x-protobuf"
POLL_S = 20.0
"""Seconds that a client's look at a future is held open. The SDK gives up after 45."""
INLINE = 32 * 1024
"""Bytes of a command's datums in its event: who restores a run's commands reads the events of all of them."""
NO_LORA = "this server trains all weights: lora_config is not looked at"
REFUSED = {
    "save_weights_external": "weights are written in Hugging Face's format already: see `weights` in its folder",
    "copy_weights": "copy the folder of the version: see `slime-events show`",
    "create_custom_loss": "forward_backward_custom computes a loss at the client",
}
T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Served:
    """What clients train. name: of the base model; short: its last part, taken too. longest: tokens of a sequence.
    first: the version that the run began with. seed: the run's.
    """

    name: str
    short: str
    architecture: str
    vocabulary: int
    longest: int
    first: int = 0
    seed: int = 0

    def check(self, base_model: str) -> None:
        """Raises Refused."""
        if base_model not in (self.name, self.short):
            raise Refused(400, f"base_model {base_model!r}: this run trains {self.name!r} (or {self.short!r})")


def tinker_app(
    worker: Participant, served: Served, answers: Answers, blobs: BlobStore, sources: Sources, settings: GatewaySettings
) -> FastAPI:
    """The routes of one run."""
    app = FastAPI(title="slime-events tinker", version="1", docs_url=None, redoc_url=None, openapi_url=None)
    calls = Calls(worker, served, answers, blobs)

    def source(request: Request) -> str:
        key = request.headers.get("x-api-key", "")
        name = sources.of(key.removeprefix(KEY_PREFIX)) if key.startswith(KEY_PREFIX) else None
        if name is None:
            raise Refused(401, "give the key that the run printed, as TINKER_API_KEY")
        return name

    source_of = Annotated[str, Depends(source)]

    async def body(request: Request) -> bytes:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > settings.max_body:
                raise Refused(413, f"a request has {settings.max_body:,} bytes at most")
        return bytes(data)

    body_of = Annotated[bytes, Depends(body)]

    @app.get(f"{ROOT}/healthz")
    async def healthz() -> Response:
        return _json({"status": "ok"})

    @app.get(f"{ROOT}/get_server_capabilities")
    async def capabilities(_: source_of) -> Response:
        model = {"model_name": served.name, "max_context_length": served.longest, "trainable": True, "sampleable": True}
        return _json({"supported_models": [model]})

    @app.post(f"{ROOT}/client/config")
    @app.post(f"{ROOT}/client/dynamic_config")
    async def config(_: source_of) -> Response:
        return _json({})  # the SDK's own

    @app.post(f"{ROOT}/create_session")
    async def create_session(_: source_of) -> Response:
        return _json({"type": "create_session", "session_id": names.new_session(), "info_message": NO_LORA})

    @app.post(f"{ROOT}/session_heartbeat")
    async def heartbeat(_: source_of) -> Response:
        return _json({"type": "session_heartbeat"})

    @app.post(f"{ROOT}/sessions/{{session}}/finish")
    async def finish(_: source_of, session: str) -> Response:
        return _json({})

    @app.post(f"{ROOT}/telemetry")
    async def telemetry(_: source_of) -> Response:
        return _json({"status": "accepted"})  # and not kept

    @app.post(f"{ROOT}/create_model")
    async def create_model(who: source_of, data: body_of) -> Response:
        return await calls.create(_decoded(data, CreateModel), who)

    @app.post(f"{ROOT}/get_info")
    async def get_info(_: source_of, data: body_of) -> Response:
        model_id = _decoded(data, OfModel).model_id
        names.model_of(model_id)
        model = {"arch": served.architecture, "model_name": served.name, "tokenizer_id": served.name}
        return _json({"type": "get_info", "model_data": model, "model_id": model_id, "is_lora": False})

    @app.post(f"{ROOT}/weights_info")
    async def weights_info(_: source_of, data: body_of) -> Response:
        await calls.version_at(_decoded(data, WeightsInfo).tinker_path)
        return _json({"base_model": served.name, "is_lora": False})

    @app.post(f"{ROOT}/forward_backward")
    async def forward_backward(who: source_of, data: body_of, request: Request) -> Response:
        if request.headers.get("content-type") != PROTOBUF or "content-encoding" in request.headers:
            raise Refused(415, f"send a {PROTOBUF} body, not compressed")
        return await calls.run_pass(AskedPass(data), who)

    @app.post(f"{ROOT}/optim_step")
    async def optim_step(who: source_of, data: body_of) -> Response:
        asked = _decoded(data, OptimStep)
        if asked.optimizer_params is not None:
            raise Refused(400, "optimizer_params: only Adam steps here, with adam_params")
        arguments = {"adam_params": asked.adam_params}
        adam_params(arguments)
        return await calls.give(asked, CommandKind.OPTIM_STEP, arguments, who)

    @app.post(f"{ROOT}/load_weights")
    async def load_weights(who: source_of, data: body_of) -> Response:
        return await calls.load(_decoded(data, LoadWeights), who)

    @app.post(f"{ROOT}/save_weights")
    async def save_weights(who: source_of, data: body_of) -> Response:
        return await calls.save(_decoded(data, SaveWeights), CommandKind.SAVE_WEIGHTS, who)

    @app.post(f"{ROOT}/save_weights_for_sampler")
    async def save_for_sampler(who: source_of, data: body_of) -> Response:
        asked = _decoded(data, SaveWeightsForSampler)
        if asked.kind != "snapshot":
            raise Refused(400, f"kind {asked.kind!r}: only snapshot is made here")
        return await calls.save(asked, CommandKind.SAVE_WEIGHTS_FOR_SAMPLER, who)

    @app.post(f"{ROOT}/create_sampling_session")
    async def create_sampling_session(_: source_of, data: body_of) -> Response:
        asked = _decoded(data, CreateSamplingSession)
        version = await calls.version_of(asked.model_path, asked.base_model)
        session = names.check_session(asked.session_id)
        sampler = names.sampler_of(session, asked.sampling_session_seq_id, version)
        return _json({"type": "create_sampling_session", "sampling_session_id": sampler})

    @app.get(f"{ROOT}/samplers/{{sampler}}")
    async def get_sampler(_: source_of, sampler: str) -> Response:
        names.version_of(sampler)
        return _json({"sampler_id": sampler, "base_model": served.name, "model_path": None})

    @app.post(f"{ROOT}/asample")
    async def asample(_: source_of, data: body_of) -> Response:
        return await calls.sample(_decoded(data, SampleRequest))

    @app.post(f"{ROOT}/retrieve_future")
    async def retrieve_future(_: source_of, data: body_of) -> Response:
        return await calls.retrieve(_decoded(data, RetrieveFuture).request_id)

    for route, why in REFUSED.items():
        refuse = partial(_refuse, f"{route} is not done here: {why}")
        app.post(f"{ROOT}/{route}", dependencies=[Depends(source)])(refuse)
    refusals(app, settings)

    @app.exception_handler(ConfigError)
    async def invalid(_: Request, error: ConfigError) -> Response:
        return _json({"error": str(error)}, 400)

    return app


class Calls:
    """What becomes of the calls that are more than an answer: each is appended before it is answered."""

    def __init__(self, worker: Participant, served: Served, answers: Answers, blobs: BlobStore) -> None:
        self._worker, self._served, self._answers, self._blobs = worker, served, answers, blobs
        self._models = set[str]()

    async def create(self, asked: CreateModel, source: str) -> Response:
        """The run's model."""
        self._served.check(asked.base_model)
        if asked.optimizer_config.get("type", "adamw") != "adamw":
            raise Refused(400, f"optimizer_config {asked.optimizer_config}: only adamw is here")
        model = names.new_model(asked.session_id, asked.model_seq_id)
        arguments = {"base_model": asked.base_model, "lora_config": asked.lora_config}
        return await self._append(model, 0, CommandKind.CREATE_MODEL, arguments, source)

    async def run_pass(self, asked: AskedPass, source: str) -> Response:
        """A forward or forward_backward."""
        datums = asked.datums(vocabulary=self._served.vocabulary, longest=self._served.longest)
        kind = CommandKind.FORWARD_BACKWARD if asked.backward else CommandKind.FORWARD
        model = await self._model(asked.model_id)
        samples = asked.samples or self._answers.made.of(datums)
        more = {"datums": pack_datums(datums), "samples": tuple(samples)}
        return await self._append(model, asked.number, kind, asked.arguments, source, **more)

    async def save(self, asked: SaveWeights, kind: CommandKind, source: str) -> Response:
        """Weights that have a name, or a sampling session of their own."""
        model = await self._model(asked.model_id)
        if asked.path is None and kind is CommandKind.SAVE_WEIGHTS:
            raise Refused(400, "path: give the weights a name")
        path = "" if asked.path is None else names.path_of(model, kind, asked.path)
        return await self.give(asked, kind, {"path": path}, source)

    async def load(self, asked: LoadWeights, source: str) -> Response:
        """Weights that this run has saved: into its model, or as the first of a new one."""
        version = await self.version_at(asked.path)
        if asked.optimizer and not await self._answers.has_checkpoint(version):
            raise Refused(400, f"{asked.path} has no optimizer's state: save_state after an optim_step keeps it")
        begins = None if version == self._served.first else version
        arguments = {"path": asked.path, "version": begins, "optimizer": asked.optimizer}
        if asked.model_id is not None:
            model, number = await self._model(asked.model_id), asked.seq_id or 0
        else:
            model, number = names.new_model(asked.session_id or "", asked.model_seq_id or 0), 0
        return await self._append(model, number, CommandKind.LOAD_WEIGHTS, arguments, source)

    async def give(self, asked: OfModel, kind: CommandKind, arguments: dict[str, Any], source: str) -> Response:
        """A command of a model that is there."""
        return await self._append(await self._model(asked.model_id), asked.seq_id or 0, kind, arguments, source)

    async def sample(self, asked: SampleRequest) -> Response:
        """Generations, on the weights of a sampling session or of the path that is given."""
        prompt = check(asked, vocabulary=self._served.vocabulary, longest=self._served.longest)
        sampler = asked.sampling_session_id or ""
        if asked.seq_id is None or not sampler:
            raise Refused(400, "sampling_session_id and seq_id: create a sampling client, and sample with it")
        version = names.version_of(sampler)
        samples = names.Samples.asked(sampler, asked.seq_id, version, asked.num_samples)
        sizes = {"seed": self._served.seed, "longest": self._served.longest}
        await self._store(sample_requests(samples, prompt, asked, version=version, **sizes))
        return _json({"request_id": samples.future, "sample_sequence_ids": samples.ids})

    async def retrieve(self, future: str) -> Response:
        """The end of a call; 408 where it has none yet."""
        samples = names.Samples.of(future)
        if samples is not None:
            made = await self._answers.samples(samples, POLL_S)
            if made is None:
                return _again(future)
            if isinstance(made, Failed):
                return _failed(made.message, "user" if made.is_users else "server")
            return Response(sample_output(made.samples, made.prompt_log_probs), media_type=PROTOBUF)
        found = await self._answers.command(names.check_command(future), POLL_S)
        if found is None:
            return _again(future)
        given, done = found
        return _failed(done.error, "user") if done.error else self._done(given, done)

    async def version_of(self, model_path: str | None, base_model: str | None) -> int:
        """The weights that a sampling client asks for. Raises Refused."""
        if model_path is not None:
            return await self.version_at(model_path)
        self._served.check(base_model or "")
        return self._served.first

    async def version_at(self, path: str) -> int:
        """Raises Refused where nothing was saved there."""
        version = await self._answers.saved(path)
        if version is None:
            raise Refused(404, f"{path}: this run has saved no weights of that name")
        return version

    def _done(self, given: CommandGiven, done: CommandDone) -> Response:
        if given.kind in (CommandKind.FORWARD, CommandKind.FORWARD_BACKWARD):
            fetch = self._answers.fetch
            lengths = [len(one.targets) for one in unpack_datums(fetch(given.datums))]
            return Response(pass_output(fetch(done.log_probs), lengths, done.metrics), media_type=PROTOBUF)
        said: dict[str, Any] = {"type": given.kind.value}
        if given.kind is CommandKind.LOAD_WEIGHTS:
            said |= {"model_id": names.model_id_of(given.model), "path": given.arguments["path"]}
        elif given.kind is CommandKind.CREATE_MODEL:
            said["model_id"] = names.model_id_of(given.model)
        elif given.kind is CommandKind.OPTIM_STEP:
            said = {"metrics": {**done.metrics, "version": float(done.version)}}
        elif done.path:
            said["path"] = done.path
        else:
            session = given.model.rpartition("-m")[0]
            said["sampling_session_id"] = names.sampler_of(session, given.number, done.version, saved=True)
        return _json(said)

    async def _model(self, model_id: str) -> str:
        """The run's model, by the protocol's name. Raises Refused for one that it does not train."""
        model = names.model_of(model_id)
        if model not in self._models:
            found = await self._answers.command(names.command_of(model, 0), POLL_S)
            if found is None or found[1].error:
                raise Refused(400, found[1].error if found else f"model {model_id} is not there yet")
            self._models.add(model)
        return model

    async def _append(
        self, model: str, number: int, kind: CommandKind, arguments: dict[str, Any], source: str, **more: Any
    ) -> Response:
        if number < 1 and kind not in BEGINS:
            raise Refused(400, f"seq_id {number}: a model's calls are counted from 1")
        command = names.command_of(model, number)
        more |= {"model": model, "number": number, "kind": kind, "source": source}
        given = CommandGiven(command=command, arguments=arguments, **more)
        await self._store([await offload_async(given, self._blobs, INLINE)])
        return _json({"request_id": command, "model_id": names.model_id_of(model)})

    async def _store(self, events: Sequence[Event]) -> None:
        """The same call again changes nothing. Raises Refused for another one under its number."""
        try:
            await append_all(self._worker.log, [once(self._worker.enclose(event)) for event in events])
        except Conflict as error:
            raise Refused(400, "seq_id was used for another call before: number a client's calls one by one") from error


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise Refused(400, f"{kind.__name__}: {error}") from error


async def _refuse(message: str, request: Request) -> Response:
    raise Refused(400, message)


def _again(future: str) -> Response:
    return _json({"type": "try_again", "request_id": future, "queue_state": "active"}, 408)


def _failed(message: str, category: str) -> Response:
    return _json({"error": message, "category": category})


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
