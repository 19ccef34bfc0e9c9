"""`Calls`: what the routes of Tinker's protocol do, one method for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from fastapi import Response

from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.errors import Conflict, EventTooLarge, InvalidValue, UnwritableEvent
from schemas.event import Event
from serve_apps.agents.off_loop import off_loop
from serve_apps.gateway.refusals import Refused
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
from serve_apps.tinker.numbers import MOST_NUMBER, Numbers
from serve_apps.tinker.sampling import SampleRequest, check, sample_requests
from serve_apps.tinker.wire import AskedPass, pass_output, sample_output
from slime_events.core.datums import pack_datums, unpack_datums
from slime_events.core.run.participant import Participant
from slime_events.loop.commands.batch import BEGINS, adam_params
from storage.blobs import BlobStore
from storage.log import append_all, once
from storage.payloads import offload_async

PROTOBUF = "application/x-protobuf"
POLL_S = 20.0
"""Seconds that a client's look at a future is held open. The SDK gives up after 45."""
INLINE = 32 * 1024
"""Bytes of a command's datums in its event: who restores a run's commands reads the events of all of them."""


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


class Calls:
    """By a client whose name is `source`. What changes something is appended before it is answered."""

    def __init__(self, worker: Participant, served: Served, answers: Answers, blobs: BlobStore) -> None:
        self._worker, self.served, self._answers, self._blobs = worker, served, answers, blobs
        self._models = set[str]()
        self._numbers = Numbers(worker)

    async def create(self, asked: CreateModel, source: str) -> Response:
        """The run's model."""
        self.served.check(asked.base_model)
        if asked.optimizer_config.get("type", "adamw") != "adamw":
            raise Refused(400, f"optimizer_config {asked.optimizer_config}: only adamw is here")
        model = names.new_model(asked.session_id, asked.model_seq_id)
        arguments = {"base_model": asked.base_model, "lora_config": asked.lora_config}
        return await self._append(model, 0, CommandKind.CREATE_MODEL, arguments, source)

    async def run_pass(self, asked: AskedPass, source: str) -> Response:
        """A forward or forward_backward."""
        read = partial(asked.datums, vocabulary=self.served.vocabulary, longest=self.served.longest)
        datums = await off_loop(asked.size, read)
        kind = CommandKind.FORWARD_BACKWARD if asked.backward else CommandKind.FORWARD
        model = await self._model(asked.model_id)
        samples = asked.samples or self._answers.made.of(datums)
        packed = await off_loop(asked.size, partial(pack_datums, datums))
        more = {"datums": packed, "samples": tuple(samples)}
        return await self._append(model, asked.number, kind, asked.arguments, source, **more)

    async def optim_step(self, asked: OptimStep, source: str) -> Response:
        """An update, which ends a step."""
        if asked.optimizer_params is not None:
            raise Refused(400, "optimizer_params: only Adam steps here, with adam_params")
        arguments = {"adam_params": asked.adam_params}
        adam_params(arguments)
        return await self._give(asked, CommandKind.OPTIM_STEP, arguments, source)

    async def save_weights(self, asked: SaveWeights, source: str) -> Response:
        """Weights and the optimizer's state."""
        return await self._save(asked, CommandKind.SAVE_WEIGHTS, source)

    async def save_for_sampler(self, asked: SaveWeightsForSampler, source: str) -> Response:
        """Weights to sample from."""
        if asked.kind != "snapshot":
            raise Refused(400, f"kind {asked.kind!r}: only snapshot is made here")
        return await self._save(asked, CommandKind.SAVE_WEIGHTS_FOR_SAMPLER, source)

    async def _save(self, asked: SaveWeights, kind: CommandKind, source: str) -> Response:
        """Under a name, or as a sampling session of their own."""
        model = await self._model(asked.model_id)
        if asked.path is None and kind is CommandKind.SAVE_WEIGHTS:
            raise Refused(400, "path: give the weights a name")
        path = "" if asked.path is None else names.path_of(model, kind, asked.path)
        return await self._give(asked, kind, {"path": path}, source)

    async def load(self, asked: LoadWeights, source: str) -> Response:
        """Weights that this run has saved: into its model, or as the first of a new one."""
        version = await self._version_at(asked.path)
        if asked.optimizer and not await self._answers.has_checkpoint(version):
            raise Refused(400, f"{asked.path} has no optimizer's state: save_state after an optim_step keeps it")
        begins = None if version == self.served.first else version
        arguments = {"path": asked.path, "version": begins, "optimizer": asked.optimizer}
        if asked.model_id is not None:
            model, number = await self._model(asked.model_id), asked.seq_id or 0
        else:
            model, number = names.new_model(asked.session_id or "", asked.model_seq_id or 0), 0
        return await self._append(model, number, CommandKind.LOAD_WEIGHTS, arguments, source)

    async def _give(self, asked: OfModel, kind: CommandKind, arguments: dict[str, Any], source: str) -> Response:
        """A command of a model that is there."""
        return await self._append(await self._model(asked.model_id), asked.seq_id or 0, kind, arguments, source)

    async def sample(self, asked: SampleRequest, source: str) -> Response:
        """Generations, on the weights of a sampling session or of the path that is given."""
        prompt = check(asked, vocabulary=self.served.vocabulary, longest=self.served.longest)
        sampler = asked.sampling_session_id or ""
        if asked.seq_id is None or not sampler:
            raise Refused(400, "sampling_session_id and seq_id: create a sampling client, and sample with it")
        version = names.version_of(sampler)
        samples = names.Samples.asked(sampler, asked.seq_id, version, asked.num_samples)
        sizes = {"seed": self.served.seed, "longest": self.served.longest}
        await self._store(sample_requests(samples, prompt, asked, version=version, **sizes))
        return json_response({"request_id": samples.future, "sample_sequence_ids": samples.ids})

    async def sampling_session(self, asked: CreateSamplingSession, source: str) -> Response:
        """A name for the weights that a client samples from."""
        if asked.model_path is not None:
            version = await self._version_at(asked.model_path)
        else:
            self.served.check(asked.base_model or "")
            version = self.served.first
        session = names.check_session(asked.session_id)
        sampler = names.sampler_of(session, asked.sampling_session_seq_id, version)
        return json_response({"type": "create_sampling_session", "sampling_session_id": sampler})

    async def info(self, asked: OfModel, source: str) -> Response:
        """About a model; its tokenizer is found where the checkpoint lies."""
        names.model_of(asked.model_id)
        served = self.served
        model = {"arch": served.architecture, "model_name": served.name, "tokenizer_id": served.name}
        return json_response({"type": "get_info", "model_data": model, "model_id": asked.model_id, "is_lora": False})

    async def weights_info(self, asked: WeightsInfo, source: str) -> Response:
        """About saved weights."""
        await self._version_at(asked.tinker_path)
        return json_response({"base_model": self.served.name, "is_lora": False})

    async def retrieve(self, asked: RetrieveFuture, source: str) -> Response:
        """The end of a call; 408 where it has none yet."""
        future = asked.request_id
        samples = names.Samples.of(future)
        if samples is not None:
            made = await self._answers.samples(samples, POLL_S)
            if made is None:
                return _again(future)
            if isinstance(made, Failed):
                return _failed(made.message, "user" if made.is_users else "server")
            return Response(sample_output(made.samples, made.prompt_log_probs), media_type=PROTOBUF)
        command = names.check_command(future)
        found = await self._answers.command(command, POLL_S)
        if found is None:
            given = await self._answers.given(command)
            why = await self._numbers.fill(given) if given is not None else ""
            return _failed(why, "user") if why else _again(future)
        given, done = found
        return _failed(done.error, "user") if done.error else self._done(given, done)

    async def _version_at(self, path: str) -> int:
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
        return json_response(said)

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
        if not (1 <= number <= MOST_NUMBER or (number == 0 and kind in BEGINS)):
            raise Refused(400, f"seq_id {number}: a model's calls are counted from 1, to {MOST_NUMBER} at most")
        command = names.command_of(model, number)
        more |= {"model": model, "number": number, "kind": kind, "source": source}
        given = CommandGiven(command=command, arguments=arguments, **more)
        await self._store([await offload_async(given, self._blobs, INLINE)])
        return json_response({"request_id": command, "model_id": names.model_id_of(model)})

    async def refuse(self, call: OfModel, kind: CommandKind, source: str, why: str) -> None:
        """A call was refused, and has its number nevertheless."""
        try:
            model = names.model_of(call.model_id)
        except InvalidValue:
            return
        await self._numbers.refuse(model, call.seq_id or 0, kind, source, why)

    async def _store(self, events: Sequence[Event]) -> None:
        """The same call again changes nothing. Raises Refused for another one under its number."""
        try:
            await append_all(self._worker.log, [once(self._worker.enclose(event)) for event in events])
        except Conflict as error:
            raise Refused(400, "seq_id was used for another call before: number a client's calls one by one") from error
        except EventTooLarge as error:
            raise Refused(413, str(error)) from error
        except UnwritableEvent as error:
            raise Refused(400, str(error)) from error


def json_response(body: Any, status: int = 200) -> Response:
    """JSON of structs and plain values."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _again(future: str) -> Response:
    return json_response({"type": "try_again", "request_id": future, "queue_state": "active"}, 408)


def _failed(message: str, category: str) -> Response:
    return json_response({"error": message, "category": category})
