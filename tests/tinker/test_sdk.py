"""The SDK's own client, unchanged, over the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker

from schemas.arrays import unpack
from schemas.commands import CommandGiven, CommandKind
from schemas.rollouts import RolloutRequested
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.app.cli.commands.show import Question, view_of
from tests.tinker.scene import SKIPPED_RATE, VOCABULARY, DrivenSimulation, TinkerGateway, datum, scene

ADAM = tinker.AdamParams(learning_rate=1e-3)


async def in_thread(gateway: TinkerGateway, drive: Callable[[tinker.ServiceClient], Any]) -> Any:
    """Return the result of a client's script."""

    def whole() -> Any:
        with gateway.client() as client:
            return drive(client)

    return await asyncio.wait_for(asyncio.to_thread(whole), 15)


def prompt_of(*tokens: int) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(list(tokens))


async def test_a_client_trains_and_samples(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> Any:
        model = client.create_lora_training_client(base_model="tiny", rank=8).result()
        passed = model.forward_backward([datum(5, 6, 7), datum(8, 9)], "cross_entropy")
        stepped = model.optim_step(ADAM)
        sampler = model.save_weights_and_get_sampling_client().result()
        params = tinker.SamplingParams(max_tokens=5, stop=["x"], top_k=3, temperature=0.5)
        sampled = sampler.sample(prompt=prompt_of(65, 66, 67), num_samples=2, sampling_params=params).result()
        whole = [65, 66, 67, *sampled.sequences[0].tokens]
        inputs = {"target_tokens": whole[1:], "weights": [1.0] * 7}
        again = tinker.Datum(model_input=prompt_of(*whole[:-1]), loss_fn_inputs=inputs)
        model.forward([again, datum(4)], "cross_entropy").result()
        return passed.result(), stepped.result(), sampled

    async with scene(tmp_path) as (simulation, gateway):
        passed, stepped, sampled = await in_thread(gateway, drive)
        commands = simulation.events(CommandGiven)
        requested = simulation.events(RolloutRequested)
        shown = await view_of(simulation.log, Question(), unpack)
        step = await view_of(simulation.log, Question(step=0), unpack)
    assert (shown.facts["calls"]["given"], shown.facts["calls"]["done"]) == (5, 5)
    assert "reward" not in shown.text
    assert step.facts["commands"] == [commands[1].command, commands[2].command]
    assert "reward" not in step.text
    assert [len(output["logprobs"].data) for output in passed.loss_fn_outputs] == [3, 2]
    assert stepped.metrics["version"] == 1.0
    assert [len(sequence.tokens) for sequence in sampled.sequences] == [5, 5]
    assert {(request.min_version, request.max_version) for request in requested} == {(1, 1)}
    assert [request.sample for request in requested] == [sequence.sequence_id for sequence in sampled.sequences]
    assert [command.kind.value for command in commands] == [
        "create_model", "forward_backward", "optim_step", "save_weights_for_sampler", "forward",
    ]  # fmt: skip
    assert commands[-1].samples == (sampled.sequences[0].sequence_id,)
    assert {command.source for command in commands} == {"test"}


async def test_a_datum_says_which_samples_it_is_made_of(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> None:
        model = client.create_lora_training_client(base_model="tiny").result()
        span = tinker.types.SampledProvenanceSpan(sequence_id="call-0-0123456789abcdef-s1", length=3)
        datum_ = datum(5, 6, 7).with_provenance(model_input=[span], loss_fn_inputs=[span])
        model.forward_backward([datum_], "cross_entropy").result()

    async with scene(tmp_path) as (simulation, gateway):
        await in_thread(gateway, drive)
        assert simulation.events(CommandGiven)[-1].samples == ("call-0-0123456789abcdef-s1",)


async def test_a_loss_of_the_clients_own_is_computed_at_the_client(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> Any:
        model = client.create_lora_training_client(base_model="tiny").result()
        loss = lambda data, log_probs: (sum((values**2).sum() for values in log_probs), {"mine": 2.0})  # noqa: E731
        return model.forward_backward_custom([datum(5, 6), datum(7)], loss).result().metrics

    async with scene(tmp_path) as (simulation, gateway):
        metrics = await in_thread(gateway, drive)
        kinds = [event.kind for event in simulation.events(CommandGiven)]
    assert metrics["mine"] == 2.0
    assert kinds[1:] == [CommandKind.FORWARD, CommandKind.FORWARD_BACKWARD]


async def test_saved_weights_are_sampled_from_and_gone_on_from(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> Any:
        model = client.create_lora_training_client(base_model="tiny").result()
        model.forward_backward([datum(5)], "cross_entropy")
        model.optim_step(ADAM)
        state = model.save_state("good").result().path
        model.optim_step(ADAM)
        weights = model.save_weights_for_sampler("last").result().path
        sampler = client.create_sampling_client(model_path=weights).result()
        base = client.create_sampling_client(base_model="tiny").result()
        for sampling_client in (sampler, base):
            sampling_client.sample(prompt_of(65), 1, tinker.SamplingParams(max_tokens=2)).result()
        later = client.create_training_client_from_state_with_optimizer(state).result()
        version = later.optim_step(ADAM).result().metrics["version"]
        with pytest.raises(tinker.TinkerError, match="replaced"):
            model.optim_step(ADAM).result()
        return version, later.get_info().is_lora

    async with scene(tmp_path) as (simulation, gateway):
        assert await in_thread(gateway, drive) == (4.0, False)
        digests = [step.weights_digest for step in simulation.events(StepCommitted)]
        published = [event.version for event in simulation.events(WeightsPublished)]
        versions = [event.min_version for event in simulation.events(RolloutRequested)]
    assert digests[2] == digests[0]
    assert digests[3] == digests[1]
    assert published == [0, 1, 2]
    assert versions == [2, 0]


async def test_a_script_that_is_run_again_begins_anew(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> None:
        model = client.create_lora_training_client(base_model="tiny").result()
        model.forward_backward([datum(5)], "cross_entropy")
        model.optim_step(ADAM).result()

    async with scene(tmp_path) as (simulation, gateway):
        await in_thread(gateway, drive)
        await in_thread(gateway, drive)
        first, anew, again = (step.weights_digest for step in simulation.events(StepCommitted))
        assert anew == simulation.events(WeightsPublished)[0].digest
        assert again == first


async def test_a_gradient_that_is_no_number_takes_no_step(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> None:
        model = client.create_lora_training_client(base_model="tiny").result()
        with pytest.raises(tinker.RequestFailedError, match="not finite"):
            model.optim_step(tinker.AdamParams(learning_rate=SKIPPED_RATE)).result()
        model.optim_step(ADAM).result()

    async with scene(tmp_path) as (_, gateway):
        await in_thread(gateway, drive)


def _lacks(name: str) -> tinker.Datum:
    whole = datum(5, 6, advantage=1.0)
    inputs = {key: value for key, value in whole.loss_fn_inputs.items() if key != name}
    return tinker.Datum(model_input=whole.model_input, loss_fn_inputs=inputs)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "gspo": lambda model: model.forward_backward([datum(5)], "gspo"),
    "beta": lambda model: model.forward_backward([datum(5, advantage=1.0)], "ppo", {"beta": 1.0}),
    "advantages": lambda model: model.forward_backward([_lacks("advantages")], "importance_sampling"),
    "target_tokens": lambda model: model.forward([datum(VOCABULARY)], "cross_entropy"),
    "not finite": lambda model: model.forward([datum(5, advantage=float("nan"))], "dro"),
    "model_input has": lambda model: model.forward([datum(*range(1, 90))], "cross_entropy"),
    "learning_rate": lambda model: model.optim_step(tinker.AdamParams(learning_rate=-1.0)),
    "dimuon|optimizer_params": lambda model: model.optim_step(tinker.types.DimuonParams(learning_rate=1.0)),
    "save_weights_external": lambda model: model.save_weights_external("x"),
    "path": lambda model: model.save_state("../../etc"),
}


@pytest.mark.parametrize("message", REFUSED)
async def test_what_cannot_be_done_is_refused_by_the_name_of_its_field(tmp_path: Path, message: str) -> None:
    def drive(client: tinker.ServiceClient) -> None:
        model = client.create_lora_training_client(base_model="tiny").result()
        with pytest.raises(tinker.TinkerError, match=message):
            REFUSED[message](model).result()

    async with scene(tmp_path) as (simulation, gateway):
        await in_thread(gateway, drive)
        assert len([event for event in simulation.events(CommandGiven) if not event.refused]) == 1


async def test_another_base_model_is_refused(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> None:
        with pytest.raises(tinker.BadRequestError, match="tiny"):
            client.create_lora_training_client(base_model="Qwen/Qwen3-8B").result()

    async with scene(tmp_path) as (_, gateway):
        await in_thread(gateway, drive)


async def test_every_route_but_the_health_wants_the_key(tmp_path: Path) -> None:
    async with DrivenSimulation(tmp_path) as simulation:
        gateway = TinkerGateway(simulation, tmp_path / "gateway")
        app = gateway.app
        routes = [(path, method.upper()) for path, methods in app.openapi()["paths"].items() for method in methods]
        assert len(routes) > 15
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            for key in ("", "tml-", "tml-wrong", gateway.key.removeprefix("tml-")):
                for path, method in routes:
                    answer = await client.request(method, path, headers={"x-api-key": key}, content=b"{}")
                    assert (answer.status_code == 401) == (not path.endswith("healthz")), (path, key)
            elsewhere = await client.get("/api/v1/healthz", headers={"host": "evil.example"})
            assert elsewhere.status_code == 421


async def test_a_call_under_a_number_that_another_has_is_refused(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> str:
        return str(client.create_lora_training_client(base_model="tiny").result().model_id)

    async with scene(tmp_path) as (_, gateway):
        body = {"model_id": await in_thread(gateway, drive), "seq_id": 1, "adam_params": {"learning_rate": 0.1}}
        other = body | {"adam_params": {"learning_rate": 0.2}}
        async with httpx.AsyncClient(base_url=gateway.url, headers={"x-api-key": gateway.key}) as client:
            answers = [await client.post("/api/v1/optim_step", json=each) for each in (body, body, other)]
        assert [answer.status_code for answer in answers] == [200, 200, 400]
        assert answers[0].json() == answers[1].json()
