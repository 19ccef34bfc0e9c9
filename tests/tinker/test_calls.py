"""Test what each route of the protocol appends and answers, over a log in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from schemas.arrays import pack_log_probs
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.errors import EventTooLarge, UnwritableEvent
from schemas.rollouts import FailureKind, RolloutRequested
from serve_apps.http.tinker import calls
from serve_apps.http.tinker.answers import PROMPT_LOG_PROBS
from serve_apps.http.tinker.wire import proto
from slime_events.core.training.datums import unpack_datums
from tests import made
from tests.tinker.lone import MODEL, MODEL_ID, SERVED, SESSION, Lone, completed, failed
from tests.tinker.test_wire import GOOD

ADAM = {"adam_params": {"learning_rate": 0.5}}
CREATE = {"session_id": SESSION, "model_seq_id": 0, "base_model": "tiny"}
SAMPLE = {"prompt": {"chunks": [{"tokens": [65, 66, 67]}]}, "sampling_params": {"max_tokens": 4}, "seq_id": 3}
PATH = f"tinker://{MODEL_ID}/weights/good"


@pytest.fixture
def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lone:
    monkeypatch.setattr(calls, "POLL_S", 0.0)
    return Lone(tmp_path)


async def post(lone: Lone, route: str, body: Any, status: int = 200) -> Any:
    answer = await lone.post(route, body)
    assert answer.status_code == status, answer.text
    assert "error" in answer.json() or status < 300 or status == 408
    return answer.json()


async def give(lone: Lone, route: str, number: int, **more: Any) -> Any:
    return await post(lone, route, {"model_id": MODEL_ID, "seq_id": number, **more})


async def pass_(lone: Lone, *, size: int = 1, **more: Any) -> httpx.Response:
    request = proto.ForwardBackwardRequest(model_id=MODEL_ID, seq_id=1, loss_fn="cross_entropy", **more)
    request.data.extend([GOOD] * size)
    headers = {"content-type": calls.PROTOBUF}
    async with lone.client() as client:
        return await client.post("/forward_backward", content=request.SerializeToString(), headers=headers)


async def end(lone: Lone, command: str, **done: Any) -> Any:
    """Return the answer to a client once the call has ended like this."""
    await lone.say(CommandDone(command=command, **{"version": 3, **done}))
    return await post(lone, "retrieve_future", {"request_id": command})


async def test_a_model_is_made_and_told(lone: Lone) -> None:
    future = await post(
        lone, "create_model", CREATE | {"lora_config": {"rank": 8}, "optimizer_config": {"type": "adamw"}}
    )
    assert future == {"request_id": f"{MODEL}-000000", "model_id": MODEL_ID}
    command = await lone.last()
    assert (command.model, command.number, command.kind, command.source) == (MODEL, 0, CommandKind.CREATE_MODEL, "test")
    assert command.arguments == {"base_model": "tiny", "lora_config": {"rank": 8}}
    assert await end(lone, future["request_id"]) == {"type": "create_model", "model_id": MODEL_ID}
    again = await post(lone, "create_model", CREATE | {"base_model": SERVED.name, "model_seq_id": 1})
    assert again["model_id"] == f"{SESSION}:train:1"


@pytest.mark.parametrize(
    "wrong",
    [{"base_model": "other"}, {"optimizer_config": {"type": "muon"}}, {"model_seq_id": -1}, {"session_id": "mine"}],
)
async def test_a_model_that_is_not_here_is_refused(lone: Lone, wrong: dict[str, Any]) -> None:
    await post(lone, "create_model", CREATE | wrong, 400)
    assert await lone.events(CommandGiven) == []


async def test_a_model_is_there_once_its_creation_is_done(lone: Lone) -> None:
    step = {"model_id": MODEL_ID, "seq_id": 1, **ADAM}
    await post(lone, "optim_step", step, 404)
    await post(lone, "create_model", CREATE)
    await post(lone, "optim_step", step, 400)
    await lone.say(CommandDone(command=f"{MODEL}-000000", version=2))
    await post(lone, "optim_step", step, 400)  # its number was taken by the refusal
    assert await give(lone, "optim_step", 2, **ADAM) == {"request_id": f"{MODEL}-000002", "model_id": MODEL_ID}


async def test_a_model_whose_creation_failed_takes_no_calls(lone: Lone) -> None:
    await lone.begin(error="another is trained")
    refused = await post(lone, "optim_step", {"model_id": MODEL_ID, "seq_id": 1, **ADAM}, 400)
    assert "another is trained" in refused["error"]


async def test_a_model_that_was_found_is_not_looked_for_again(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    await lone.begin()
    await give(lone, "optim_step", 1, **ADAM)
    monkeypatch.setattr(lone.answers, "command", None)
    await give(lone, "optim_step", 2, **ADAM)


async def test_a_step_is_told_with_its_version(lone: Lone) -> None:
    await lone.begin()
    future = await give(lone, "optim_step", 1, **ADAM)
    command = await lone.last()
    assert (command.kind, command.arguments, command.number) == (CommandKind.OPTIM_STEP, ADAM, 1)
    assert await end(lone, future["request_id"], metrics={"grad_norm": 0.5}) == {
        "metrics": {"grad_norm": 0.5, "version": 3.0}
    }


async def test_steps_of_other_optimizers_or_rates_are_refused(lone: Lone) -> None:
    await lone.begin()
    for number, wrong in enumerate([ADAM | {"optimizer_params": {}}, {"adam_params": {"learning_rate": -1}}], 1):
        await post(lone, "optim_step", {"model_id": MODEL_ID, "seq_id": number, **wrong}, 400)
        assert (await lone.last()).refused


@pytest.mark.parametrize("backward", [True, False])
async def test_a_pass_is_given_with_its_datums_and_told_with_their_log_probs(lone: Lone, backward: bool) -> None:
    await lone.begin()
    answer = await pass_(lone, forward_only=not backward)
    assert answer.status_code == 200
    pass_given = await lone.last()
    assert pass_given.kind is (CommandKind.FORWARD_BACKWARD if backward else CommandKind.FORWARD)
    assert (pass_given.number, pass_given.source, pass_given.samples) == (1, "test", ())
    assert pass_given.arguments == {"loss_fn": "cross_entropy", "config": {}}
    assert pass_given.datums.blob is None, "a small one is in the event"
    (datum,) = unpack_datums(lone.answers.fetch(pass_given.datums))
    assert (datum.tokens.tolist(), datum.targets.tolist()) == ([1, 2], [2, 3])
    command = answer.json()["request_id"]
    await lone.say(CommandDone(command=command, version=3, log_probs=pack_log_probs([-1, -2]), metrics={"loss": 3.0}))
    response = await lone.post("retrieve_future", {"request_id": command})
    assert (response.status_code, response.headers["content-type"]) == (200, calls.PROTOBUF)
    output = proto.ForwardBackwardOutput()
    output.ParseFromString(response.content)
    assert np.frombuffer(output.loss_fn_outputs[0].fields["logprobs"].data, "<f4").tolist() == [-1, -2]
    assert dict(output.metrics) == {"loss": 3.0}


async def test_many_datums_are_no_part_of_their_event(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    await lone.begin()
    monkeypatch.setattr(calls, "INLINE", 64)
    assert (await pass_(lone)).status_code == 200
    command = await lone.last()
    assert command.datums.blob is not None
    assert len(unpack_datums(lone.answers.fetch(command.datums))) == 1


@pytest.mark.parametrize("number", [-1, 0, 1_000_000_000, None])
async def test_calls_are_counted_from_one(lone: Lone, number: int | None) -> None:
    await lone.begin()
    await post(lone, "optim_step", {"model_id": MODEL_ID, "seq_id": number, **ADAM}, 400)
    assert len(await lone.events(CommandGiven)) == 1
    await give(lone, "optim_step", 999_999_999, **ADAM)


async def test_a_number_is_one_call(lone: Lone) -> None:
    await lone.begin()
    first = await give(lone, "optim_step", 1, **ADAM)
    assert await give(lone, "optim_step", 1, **ADAM) == first
    other = {"adam_params": {"learning_rate": 0.25}}
    await post(lone, "optim_step", {"model_id": MODEL_ID, "seq_id": 1, **other}, 400)
    assert len(await lone.events(CommandGiven)) == 2


@pytest.mark.parametrize(("error", "status"), [(EventTooLarge("no"), 413), (UnwritableEvent("no"), 400)])
async def test_what_no_event_holds_is_refused(
    lone: Lone, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def append(*_: Any) -> None:
        raise error

    monkeypatch.setattr(calls, "append_all", append)
    await post(lone, "create_model", CREATE, status)


async def test_weights_are_saved_under_a_name(lone: Lone) -> None:
    await lone.begin()
    future = await give(lone, "save_weights", 1, path="good")
    command = await lone.last()
    assert (command.kind, command.arguments) == (CommandKind.SAVE_WEIGHTS, {"path": PATH})
    assert await end(lone, future["request_id"], path=PATH) == {"type": "save_weights", "path": PATH}
    await post(lone, "save_weights", {"model_id": MODEL_ID, "seq_id": 2}, 400)
    named = await give(lone, "save_weights_for_sampler", 3, path="good")
    path = f"tinker://{MODEL_ID}/sampler_weights/good"
    assert (await lone.last()).arguments == {"path": path}
    assert (await end(lone, named["request_id"], path=path))["path"] == path


async def test_weights_without_a_name_are_a_sampling_session(lone: Lone) -> None:
    await lone.begin()
    future = await give(lone, "save_weights_for_sampler", 1)
    command = await lone.last()
    assert (command.kind, command.arguments) == (CommandKind.SAVE_WEIGHTS_FOR_SAMPLER, {"path": ""})
    answer = await end(lone, future["request_id"], version=5)
    assert answer == {"type": "save_weights_for_sampler", "sampling_session_id": f"{SESSION}:save:1:v5"}
    body = {"model_id": MODEL_ID, "seq_id": 2, "kind": "whole"}
    await post(lone, "save_weights_for_sampler", body, 400)


async def test_saved_weights_are_loaded_into_a_model_or_begin_another(lone: Lone) -> None:
    await lone.begin()
    load = {"path": PATH, "optimizer": False}
    await post(lone, "load_weights", {**load, "model_id": MODEL_ID, "seq_id": 1}, 404)
    await lone.say(CommandDone(command="c", version=4, path=PATH))
    future = await give(lone, "load_weights", 2, **load)
    command = await lone.last()
    assert (command.kind, command.number) == (CommandKind.LOAD_WEIGHTS, 2)
    assert command.arguments == {"path": PATH, "version": 4, "optimizer": False}
    answer = await end(lone, future["request_id"])
    assert answer == {"type": "load_weights", "model_id": MODEL_ID, "path": PATH}
    other = await post(lone, "load_weights", {**load, "session_id": SESSION, "model_seq_id": 1})
    assert other["request_id"] == f"{SESSION}-m1-000000"
    first = await post(lone, "load_weights", {**load, "session_id": "tinker-fedcba9876543210"})
    assert first["request_id"] == "tinker-fedcba9876543210-m0-000000"
    await post(lone, "load_weights", load, 400)


async def test_a_load_into_a_model_has_a_number_of_its_own(lone: Lone) -> None:
    await lone.begin()
    await lone.say(CommandDone(command="c", version=4, path=PATH))
    await post(lone, "load_weights", {"path": PATH, "optimizer": False, "model_id": MODEL_ID}, 400)
    assert len(await lone.events(CommandGiven)) == 1


async def test_a_state_is_loaded_where_it_was_saved(lone: Lone) -> None:
    await lone.begin()
    await lone.say(CommandDone(command="c", version=4, path=PATH))
    body = {"path": PATH, "optimizer": True}
    await post(lone, "load_weights", {**body, "model_id": MODEL_ID, "seq_id": 1}, 400)
    await lone.say(made.saved(4, weights_digest="w", optimizer_digest="o"))
    await give(lone, "load_weights", 2, **body)
    assert (await lone.last()).arguments["optimizer"] is True


async def test_the_weights_that_the_run_began_with_are_its_base_s(lone: Lone) -> None:
    await lone.begin()
    await lone.say(CommandDone(command="c", version=SERVED.first, path=PATH))
    await give(lone, "load_weights", 1, path=PATH, optimizer=False)
    assert (await lone.last()).arguments["version"] is None


async def test_a_session_samples_from_the_base_or_what_was_saved(lone: Lone) -> None:
    fields = {"session_id": SESSION, "sampling_session_seq_id": 1}
    base = await post(lone, "create_sampling_session", fields | {"base_model": "tiny"})
    assert base == {"type": "create_sampling_session", "sampling_session_id": f"{SESSION}:sample:1:v2"}
    await post(lone, "create_sampling_session", fields, 400)
    await post(lone, "create_sampling_session", fields | {"base_model": "tiny", "session_id": "mine"}, 400)
    await post(lone, "create_sampling_session", fields | {"model_path": PATH}, 404)
    await lone.say(CommandDone(command="c", version=4, path=PATH))
    saved = await post(lone, "create_sampling_session", fields | {"model_path": PATH})
    assert saved["sampling_session_id"] == f"{SESSION}:sample:1:v4"
    assert await post(lone, "weights_info", {"tinker_path": PATH}) == {"base_model": SERVED.name, "is_lora": False}
    await post(lone, "weights_info", {"tinker_path": "tinker://none"}, 404)


async def test_samples_are_asked_for_and_told(lone: Lone) -> None:
    request = SAMPLE | {"sampling_session_id": f"{SESSION}:sample:1:v4", "num_samples": 2, "prompt_logprobs": True}
    promise = await post(lone, "asample", request)
    requests = await lone.events(RolloutRequested)
    assert promise["sample_sequence_ids"] == [each.sample for each in requests]
    assert [(each.min_version, each.sampling.max_new_tokens) for each in requests] == [(4, 4), (4, 4)]
    assert await post(lone, "asample", request) == promise
    assert len(await lone.events(RolloutRequested)) == 2
    future = {"request_id": promise["request_id"]}
    waits = await post(lone, "retrieve_future", future, 408)
    assert waits == {"type": "try_again", "request_id": promise["request_id"], "queue_state": "active"}
    meta = {PROMPT_LOG_PROBS: [[None, 65, None], [-0.25, 66, None], [-0.5, 67, None]]}
    await lone.say(completed(requests[0].sample, meta=meta), completed(requests[1].sample, [7]))
    answer = await lone.post("retrieve_future", future)
    assert (answer.status_code, answer.headers["content-type"]) == (200, calls.PROTOBUF)
    output = proto.SampleResponse()
    output.ParseFromString(answer.content)
    assert [np.frombuffer(sequence.tokens, "<i4").tolist() for sequence in output.sequences] == [[5, 6], [7]]
    assert np.frombuffer(output.prompt_logprobs, "<f4")[1:].tolist() == [-0.25, -0.5]


async def test_samples_have_room_and_the_run_s_seed(tmp_path: Path) -> None:
    sample_request = SAMPLE | {"sampling_session_id": f"{SESSION}:sample:1:v4", "sampling_params": {}}
    seeds = []
    for seed in (7, 8):
        lone = Lone(tmp_path / str(seed))
        lone.calls.served = dataclasses.replace(SERVED, seed=seed)
        await post(lone, "asample", sample_request)
        (request,) = await lone.events(RolloutRequested)
        assert request.sampling.max_new_tokens == SERVED.longest - 3
        seeds.append(request.seed)
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("kind", [FailureKind.INVALID, FailureKind.ENGINE])
async def test_samples_that_came_to_nothing_say_whose_it_is(tmp_path: Path, kind: FailureKind) -> None:
    lone = Lone(tmp_path, attempts=1)
    future = await post(lone, "asample", SAMPLE | {"sampling_session_id": f"{SESSION}:sample:1:v4"})
    await lone.say(failed(future["sample_sequence_ids"][0], kind))
    answer = await post(lone, "retrieve_future", {"request_id": future["request_id"]})
    assert answer["category"] == ("user" if kind is FailureKind.INVALID else "server")


@pytest.mark.parametrize("wrong", [{}, {"sampling_session_id": "x"}, {"sampling_session_id": ""}, {"seq_id": None}])
async def test_samples_are_of_a_session_and_have_a_number(lone: Lone, wrong: dict[str, Any]) -> None:
    request = SAMPLE | ({"sampling_session_id": f"{SESSION}:sample:1:v4"} if "seq_id" in wrong else {}) | wrong
    await post(lone, "asample", request, 400)
    assert await lone.events(RolloutRequested) == []


async def test_a_future_is_told_or_asked_to_come_again(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    await lone.begin()
    await post(lone, "retrieve_future", {"request_id": "mine"}, 400)
    await post(lone, "retrieve_future", {"request_id": f"{MODEL}-000001"}, 404)
    future_ = await give(lone, "optim_step", 1, **ADAM)
    waits = await post(lone, "retrieve_future", {"request_id": future_["request_id"]}, 408)
    assert (waits["type"], waits["request_id"]) == ("try_again", future_["request_id"])
    failed_ = await end(lone, future_["request_id"], error="not finite")
    assert failed_ == {"error": "not finite", "category": "user"}


async def test_a_future_that_never_comes_says_why(lone: Lone) -> None:
    await lone.begin()
    future_ = await give(lone, "optim_step", 5000, **ADAM)
    answer = await post(lone, "retrieve_future", {"request_id": future_["request_id"]})
    assert answer["error"]
    assert answer["category"] == "user"


async def test_what_is_said_of_a_model(lone: Lone) -> None:
    assert await post(lone, "get_info", {"model_id": MODEL_ID}) == {
        "type": "get_info",
        "model_data": {"arch": "Tiny", "model_name": SERVED.name, "tokenizer_id": SERVED.name},
        "model_id": MODEL_ID,
        "is_lora": False,
    }
    await post(lone, "get_info", {"model_id": "mine"}, 400)
