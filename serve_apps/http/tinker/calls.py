"""`Calls`: the routes of Tinker's protocol, one method for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Response

from schemas.arrays import EMPTY_BYTES, Array
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.doc import doc
from schemas.errors import Conflict, EventTooLarge, InvalidValue, UnwritableEvent
from schemas.event import Event
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.tinker import names
from serve_apps.http.tinker.answers import Answers, Failed
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
from serve_apps.http.tinker.numbers import MOST_NUMBER, Numbers
from serve_apps.http.tinker.sampling import SampleRequest, check, sample_requests
from serve_apps.http.tinker.wire import PassRequest, pass_output, sample_output
from serve_apps.rollouts.agents.off_loop import off_loop
from slime_events.core.run.participant import Participant
from slime_events.core.training.datums import pack_datums, unpack_datums
from slime_events.loop.commands.batch import BEGINS, adam_params
from storage.blobs import BlobStore
from storage.log import append_all, once
from storage.payloads import offload_async

PROTOBUF = "application/x-protobuf"
POLL_S = 20.0
"""Seconds that a request for a future waits for its result. The SDK gives up after 45."""
INLINE = 32 * 1024
"""Most bytes of a command's datums in its event. Restoring a run's commands reads the events of all of them."""


@dataclass(frozen=True, slots=True)
class Served:
    """The model that clients train."""

    name: Annotated[str, doc("name of the base model")]
    short: Annotated[str, doc("last part of `name`, which clients may use too")]
    architecture: str
    vocabulary: Annotated[int, doc("token ids are below it")]
    longest: Annotated[int, doc("limit of a sequence [tokens]")]
    first: Annotated[int, doc("weight version that the run began with")] = 0
    seed: Annotated[int, doc("seed of the run")] = 0

    def check(self, base_model: str) -> None:
        """Raise Refused if this is another model."""
        if base_model not in (self.name, self.short):
            message = f"base_model {base_model!r} is not served: this run trains {self.name!r} (or {self.short!r})"
            raise Refused(400, message)


class Calls:
    """Answers calls. source: name of the client. A call that changes something is appended before it is answered."""

    def __init__(self, worker: Participant, served: Served, answers: Answers, blobs: BlobStore) -> None:
        self._worker, self.served, self._answers, self._blobs = worker, served, answers, blobs
        self._models = set[str]()
        self._numbers = Numbers(worker)

    async def create(self, request: CreateModel, source: str) -> Response:
        """Create the run's model."""
        self.served.check(request.base_model)
        if request.optimizer_config.get("type", "adamw") != "adamw":
            raise Refused(400, f"optimizer_config {request.optimizer_config}: the type must be adamw")
        model = names.new_model(request.session_id, request.model_seq_id)
        arguments = {"base_model": request.base_model, "lora_config": request.lora_config}
        return await self._append(model, 0, CommandKind.CREATE_MODEL, arguments, source)

    async def run_pass(self, request: PassRequest, source: str) -> Response:
        """Append a forward or forward_backward command."""
        read = partial(request.datums, vocabulary=self.served.vocabulary, longest=self.served.longest)
        datums = await off_loop(request.size, read)
        kind = CommandKind.FORWARD_BACKWARD if request.backward else CommandKind.FORWARD
        model = await self._model(request.model_id)
        samples = request.samples or self._answers.sequences.of(datums)
        packed = await off_loop(request.size, partial(pack_datums, datums))
        return await self._append(
            model, request.number, kind, request.arguments, source, datums=packed, samples=tuple(samples)
        )

    async def optim_step(self, request: OptimStep, source: str) -> Response:
        """Append an optim_step command, which ends a step."""
        if request.optimizer_params is not None:
            raise Refused(400, "optimizer_params is not supported: use Adam with adam_params")
        arguments = {"adam_params": request.adam_params}
        adam_params(arguments)
        return await self._give(request, CommandKind.OPTIM_STEP, arguments, source)

    async def save_weights(self, request: SaveWeights, source: str) -> Response:
        """Save weights and the optimizer's state."""
        return await self._save(request, CommandKind.SAVE_WEIGHTS, source)

    async def save_for_sampler(self, request: SaveWeightsForSampler, source: str) -> Response:
        """Save weights to sample from."""
        if request.kind != "snapshot":
            raise Refused(400, f"kind {request.kind!r} is not supported: use snapshot")
        return await self._save(request, CommandKind.SAVE_WEIGHTS_FOR_SAMPLER, source)

    async def _save(self, request: SaveWeights, kind: CommandKind, source: str) -> Response:
        """Save weights under a name. Without a name, the saved weights become a sampling session."""
        model = await self._model(request.model_id)
        if request.path is None and kind is CommandKind.SAVE_WEIGHTS:
            raise Refused(400, "path is required: the name to save under")
        path = "" if request.path is None else names.path_of(model, kind, request.path)
        return await self._give(request, kind, {"path": path}, source)

    async def load(self, request: LoadWeights, source: str) -> Response:
        """Load weights that this run saved into its model, or into a new model."""
        version = await self._version_at(request.path)
        if request.optimizer and not await self._answers.has_checkpoint(version):
            raise Refused(400, f"{request.path} has no optimizer state: only save_state after an optim_step saves it")
        begins = None if version == self.served.first else version
        arguments = {"path": request.path, "version": begins, "optimizer": request.optimizer}
        if request.model_id is not None:
            model, number = await self._model(request.model_id), request.seq_id or 0
        else:
            model, number = names.new_model(request.session_id or "", request.model_seq_id or 0), 0
        return await self._append(model, number, CommandKind.LOAD_WEIGHTS, arguments, source)

    async def _give(self, request: OfModel, kind: CommandKind, arguments: dict[str, Any], source: str) -> Response:
        """Append a command of an existing model."""
        return await self._append(await self._model(request.model_id), request.seq_id or 0, kind, arguments, source)

    async def sample(self, request: SampleRequest, source: str) -> Response:
        """Request rollouts with the weights of a sampling session."""
        prompt = check(request, vocabulary=self.served.vocabulary, longest=self.served.longest)
        sampler = request.sampling_session_id or ""
        if request.seq_id is None or not sampler:
            raise Refused(400, "sampling_session_id and seq_id are required: sample with a sampling client")
        version = names.version_of(sampler)
        samples = names.Samples.new(sampler, request.seq_id, version, request.num_samples)
        sizes = {"seed": self.served.seed, "longest": self.served.longest}
        await self._store(sample_requests(samples, prompt, request, version=version, **sizes))
        return json_response({"request_id": samples.future, "sample_sequence_ids": samples.ids})

    async def sampling_session(self, request: CreateSamplingSession, source: str) -> Response:
        """Return a name for the weights that a client samples from."""
        if request.model_path is not None:
            version = await self._version_at(request.model_path)
        else:
            self.served.check(request.base_model or "")
            version = self.served.first
        session = names.check_session(request.session_id)
        sampler = names.sampler_of(session, request.sampling_session_seq_id, version)
        return json_response({"type": "create_sampling_session", "sampling_session_id": sampler})

    async def info(self, request: OfModel, source: str) -> Response:
        """Describe a model. The id of its tokenizer is the path of the checkpoint's folder."""
        names.model_of(request.model_id)
        served = self.served
        model = {"arch": served.architecture, "model_name": served.name, "tokenizer_id": served.name}
        return json_response({"type": "get_info", "model_data": model, "model_id": request.model_id, "is_lora": False})

    async def weights_info(self, request: WeightsInfo, source: str) -> Response:
        """Describe saved weights."""
        await self._version_at(request.tinker_path)
        return json_response({"base_model": self.served.name, "is_lora": False})

    async def retrieve(self, request: RetrieveFuture, source: str) -> Response:
        """Return the result of a call; 408 if there is none yet."""
        future = request.request_id
        samples = names.Samples.of(future)
        if samples is not None:
            finished = await self._answers.samples(samples, POLL_S)
            if finished is None:
                return _again(future)
            if isinstance(finished, Failed):
                return _failed(finished.message, "user" if finished.is_users else "server")
            return Response(sample_output(finished.samples, finished.prompt_log_probs), media_type=PROTOBUF)
        name = names.check_command(future)
        result = await self._answers.command(name, POLL_S)
        if result is None:
            waiting = await self._answers.find(name)
            why = await self._numbers.fill(waiting) if waiting is not None else ""
            return _failed(why, "user") if why else _again(future)
        command, done = result
        return _failed(done.error, "user") if done.error else self._done(command, done)

    async def _version_at(self, path: str) -> int:
        """Return the version of saved weights. Raises Refused if nothing was saved under this path."""
        version = await self._answers.saved(path)
        if version is None:
            raise Refused(404, f"{path}: this run has saved no weights under this path")
        return version

    def _done(self, command: CommandGiven, done: CommandDone) -> Response:
        if command.kind in (CommandKind.FORWARD, CommandKind.FORWARD_BACKWARD):
            fetch = self._answers.fetch
            lengths = [len(datum.targets) for datum in unpack_datums(fetch(command.datums))]
            return Response(pass_output(fetch(done.log_probs), lengths, done.metrics), media_type=PROTOBUF)
        answer: dict[str, Any] = {"type": command.kind.value}
        if command.kind is CommandKind.LOAD_WEIGHTS:
            answer |= {"model_id": names.model_id_of(command.model), "path": command.arguments["path"]}
        elif command.kind is CommandKind.CREATE_MODEL:
            answer["model_id"] = names.model_id_of(command.model)
        elif command.kind is CommandKind.OPTIM_STEP:
            answer = {"metrics": {**done.metrics, "version": float(done.version)}}
        elif done.path:
            answer["path"] = done.path
        else:
            session = command.model.rpartition("-m")[0]
            answer["sampling_session_id"] = names.sampler_of(session, command.number, done.version, saved=True)
        return json_response(answer)

    async def _model(self, model_id: str) -> str:
        """Return the log's name of the run's model. Raises Refused if the run does not train this model."""
        model = names.model_of(model_id)
        if model not in self._models:
            result = await self._answers.command(names.command_of(model, 0), POLL_S)
            if result is None or result[1].error:
                message = f"model {model_id} is not created yet: retry later"
                raise Refused(400, result[1].error if result else message)
            self._models.add(model)
        return model

    async def _append(
        self,
        model: str,
        number: int,
        kind: CommandKind,
        arguments: dict[str, Any],
        source: str,
        *,
        datums: Array = EMPTY_BYTES,
        samples: tuple[str, ...] = (),
    ) -> Response:
        if not (1 <= number <= MOST_NUMBER or (number == 0 and kind in BEGINS)):
            raise Refused(400, f"seq_id must be 1 to {MOST_NUMBER}, not {number}: number a model's calls from 1")
        command = CommandGiven(
            command=names.command_of(model, number),
            model=model,
            number=number,
            kind=kind,
            source=source,
            arguments=arguments,
            datums=datums,
            samples=samples,
        )
        await self._store([await offload_async(command, self._blobs, INLINE)])
        return json_response({"request_id": command.command, "model_id": names.model_id_of(model)})

    async def refuse(self, call: OfModel, kind: CommandKind, source: str, why: str) -> None:
        """Take the number of a refused call."""
        try:
            model = names.model_of(call.model_id)
        except InvalidValue:
            return
        await self._numbers.refuse(model, call.seq_id or 0, kind, source, why)

    async def _store(self, events: Sequence[Event]) -> None:
        """Append events. A repeated call changes nothing. Raises Refused if another call has its number."""
        try:
            await append_all(self._worker.log, [once(self._worker.enclose(event)) for event in events])
        except Conflict as error:
            raise Refused(400, "another call has this seq_id: number a client's calls one by one") from error
        except EventTooLarge as error:
            raise Refused(413, str(error)) from error
        except UnwritableEvent as error:
            raise Refused(400, str(error)) from error


def json_response(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _again(future: str) -> Response:
    return json_response({"type": "try_again", "request_id": future, "queue_state": "active"}, 408)


def _failed(message: str, category: str) -> Response:
    return json_response({"error": message, "category": category})
