"""A call that is refused, or never comes, has its number: later calls of its model are carried out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import CommandDone, CommandGiven, CommandKind
from serve_apps.http.tinker import calls, numbers
from serve_apps.http.tinker.wire import call_at, proto
from slime_events.loop.commands.order import CommandOrder
from tests.tinker.scene import VOCABULARY, TinkerGateway, datum, scene
from tests.tinker.test_sdk import ADAM, in_thread

STEP = {"adam_params": {"learning_rate": 0.001}}
Body = dict[str, Any] | str


async def test_the_sdk_goes_on_after_what_was_refused(tmp_path: Path) -> None:
    def drive(client: tinker.ServiceClient) -> tuple[list[str], Any]:
        model = client.create_lora_training_client(base_model="tiny").result()
        refused = list[str]()
        for wrong in (
            lambda: model.forward_backward([datum(VOCABULARY + 5)], "cross_entropy").result(),
            lambda: model.forward_backward([datum(*range(1, 200))], "cross_entropy").result(),
            lambda: model.forward([datum(1)], "importance_sampling").result(),
            lambda: model.optim_step(tinker.AdamParams(learning_rate=-1.0)).result(),
            lambda: model.load_state("tinker://nothing").result(),
            lambda: model.save_state("no/such name").result(),
        ):
            try:
                wrong()
            except Exception as error:
                refused.append(f"{error}")
        model.forward_backward([datum(5, 6)], "cross_entropy").result()
        return refused, model.optim_step(ADAM).result()

    async with scene(tmp_path) as (simulation, gateway):
        refused, stepped = await in_thread(gateway, drive)
        taken = [event.number for event in simulation.events(CommandGiven) if event.refused]
    assert len(refused) == 6
    assert stepped.metrics["version"] == 1.0
    assert taken == [1, 2, 3, 4, 5, 6]


class Client:
    """Play the client of one model, without the SDK."""

    def __init__(self, gateway: TinkerGateway) -> None:
        self._http = httpx.AsyncClient(base_url=f"{gateway.url}/api/v1", headers={"x-api-key": gateway.key}, timeout=20)
        self.model = ""

    async def __aenter__(self) -> Client:
        session = (await self._http.post("/create_session")).json()["session_id"]
        future = await self.post("create_model", {"session_id": session, "model_seq_id": 0, "base_model": "tiny"})
        await self.end(future)
        self.model = future["model_id"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def send(self, route: str, body: Any, kind: str = "application/json") -> httpx.Response:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return await self._http.post(f"/{route}", content=data, headers={"content-type": kind})

    async def post(self, route: str, body: Body) -> Any:
        answer = await self.send(route, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def end(self, call: dict[str, Any], tries: int = 10) -> Any:
        for _ in range(tries):
            answer = await self.send("retrieve_future", {"request_id": call["request_id"]})
            if answer.status_code != 408:
                return answer.json()
        raise AssertionError("the call hangs")

    async def step(self, number: int) -> Any:
        return await self.end(await self.post("optim_step", {"model_id": self.model, "seq_id": number, **STEP}))


WRONG: list[tuple[str, Body]] = [
    ("optim_step", {"adam_params": {"learning_rate": "fast"}}),
    ("optim_step", {"adam_params": {"learning_rate": -1}}),
    ("optim_step", {"adam_params": {"learning_rate": 10**400}}),
    ("optim_step", {"adam_params": []}),
    ("optim_step", {"optimizer_params": {}}),
    ("optim_step", {"adam_params": {"learning_rate": 0.1, "eps": None}}),
    ("save_weights", {}),
    ("save_weights", {"path": "a/b"}),
    ("save_weights", {"path": "\ud83d"}),
    ("save_weights", {"path": 7}),
    ("save_weights_for_sampler", {"kind": "whole"}),
    ("load_weights", {"path": "tinker://none", "optimizer": False}),
    ("load_weights", {"path": "tinker://none"}),
    ("load_weights", {"path": "\udc00", "optimizer": True}),
]


@pytest.mark.parametrize(("route", "body"), WRONG, ids=[f"{route}-{at}" for at, (route, _) in enumerate(WRONG)])
async def test_each_refusal_takes_its_number(tmp_path: Path, route: str, body: dict[str, Any]) -> None:
    async with scene(tmp_path) as (_, gateway), Client(gateway) as client:
        for _ in range(2):  # a client that tries again hears the same
            refused = await client.send(route, {"model_id": client.model, "seq_id": 1, **body})
            assert 400 <= refused.status_code < 500
            assert refused.json()["error"]
        assert (await client.step(2))["metrics"]["version"] == 1.0


async def test_a_pass_that_is_refused_takes_its_number(tmp_path: Path) -> None:
    async with scene(tmp_path) as (_, gateway), Client(gateway) as client:
        empty = proto.ForwardBackwardRequest(model_id=client.model, seq_id=1, loss_fn="cross_entropy")
        refused = await client.send("forward_backward", empty.SerializeToString(), calls.PROTOBUF)
        assert refused.status_code == 400
        assert (await client.step(2))["metrics"]["version"] == 1.0


@pytest.mark.parametrize("is_said", [True, False])
async def test_a_pass_that_is_too_large_takes_its_number(tmp_path: Path, is_said: bool) -> None:
    async with scene(tmp_path) as (simulation, gateway), Client(gateway) as client:
        begin = proto.ForwardBackwardRequest(model_id=client.model, seq_id=1).SerializeToString()
        large = begin + b"x" * (65 * 1024 * 1024)

        async def pieces() -> Any:
            for at in range(0, len(large), 1 << 20):
                yield large[at : at + (1 << 20)]

        refused = await client.send("forward_backward", large if is_said else pieces(), calls.PROTOBUF)
        assert refused.status_code == 413
        assert (await client.step(2))["metrics"]["version"] == 1.0
        assert [event.number for event in simulation.events(CommandGiven) if event.refused] == [1]


@given(st.binary(max_size=20) | st.integers(0, 2**31 - 1))
def test_the_number_of_a_pass_is_read_from_its_first_bytes(any_: bytes | int) -> None:
    if isinstance(any_, bytes):
        call_at(any_)
        call_at(b"\x0a\x02ab" + any_)
    else:
        whole = proto.ForwardBackwardRequest(model_id="m:train:0", seq_id=any_, loss_fn="x").SerializeToString()
        assert call_at(whole) == (("m:train:0", any_) if any_ else None)


async def test_numbers_that_are_used_or_cannot_be_change_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as (simulation, gateway), Client(gateway) as client:
        assert (await client.step(1))["metrics"]["version"] == 1.0
        for number in (0, -1, 10**9, 10**30, None, True, "1", 1.5, 1):
            refused = await client.send("save_weights", {"model_id": client.model, "seq_id": number, "path": "a"})
            assert refused.status_code == 400, (number, refused.text)
        for model in ("x", "", client.model.replace("train:0", "train:7"), "tinker-0000000000000000:train:0", "\ud800"):
            refused = await client.send("save_weights", {"model_id": model, "seq_id": 2, "path": "a/b"})
            assert refused.status_code in (400, 404), (model, refused.text)
        assert len(simulation.events(CommandGiven)) == 2
        assert (await client.step(2))["metrics"]["version"] == 2.0


async def test_a_call_that_never_comes_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "POLL_S", 0.2)
    monkeypatch.setattr(numbers, "GAP_S", 0.5)
    async with scene(tmp_path) as (simulation, gateway), Client(gateway) as client:
        assert (await client.step(3))["metrics"]["version"] == 1.0
        lost = [event.number for event in simulation.events(CommandGiven) if event.refused]
        assert lost == [1, 2]
        late = await client.send("optim_step", {"model_id": client.model, "seq_id": 2, **STEP})
        assert late.status_code == 400
        far = await client.post("optim_step", {"model_id": client.model, "seq_id": 500_000, **STEP})
        assert "are missing" in (await client.end(far))["error"]
        assert (await client.step(4))["metrics"]["version"] == 2.0


async def test_a_call_under_way_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes after the next of its client's, as two connections may bring them."""
    monkeypatch.setattr(calls, "POLL_S", 0.1)
    async with scene(tmp_path) as (simulation, gateway), Client(gateway) as client:
        second = await client.post("optim_step", {"model_id": client.model, "seq_id": 2, **STEP})
        with pytest.raises(AssertionError):
            await client.end(second, tries=2)
        assert (await client.step(1))["metrics"]["version"] == 1.0
        assert (await client.end(second))["metrics"]["version"] == 2.0
        assert not [event for event in simulation.events(CommandGiven) if event.refused]


async def test_a_pass_that_raises_is_told_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(tmp_path) as (simulation, gateway):
        whole = simulation.ranks.run_pass

        async def run_pass(pass_: Any, *, backward: bool) -> Any:
            if not backward:
                raise ValueError("a datum that no rank can take")
            return await whole(pass_, backward=backward)

        monkeypatch.setattr(simulation.ranks, "run_pass", run_pass)

        def drive(client: tinker.ServiceClient) -> tuple[str, Any]:
            model = client.create_lora_training_client(base_model="tiny").result()
            try:
                model.forward([datum(1)], "cross_entropy").result()
                message = ""
            except Exception as error:
                message = f"{error}"
            model.forward_backward([datum(2)], "cross_entropy").result()
            return message, model.optim_step(ADAM).result()

        message, stepped = await in_thread(gateway, drive)
        assert "no rank can take" in message
        assert stepped.metrics["version"] == 1.0


def test_what_is_refused_is_settled_in_its_turn() -> None:
    order = CommandOrder()
    sent = [
        CommandGiven(command=f"m-{number:06d}", model="m", number=number, kind=kind, refused=refused)
        for number, (kind, refused) in enumerate(
            [
                (CommandKind.CREATE_MODEL, ""),
                (CommandKind.FORWARD_BACKWARD, "no such loss"),
                (CommandKind.OPTIM_STEP, "no such rate"),
                (CommandKind.OPTIM_STEP, ""),
            ]
        )
    ]
    for event in reversed(sent[1:]):
        order.apply(event)
    for event in (sent[0], *reversed(sent[1:])):
        order.apply(event)
    assert [(due.command.number, due.refused, due.ends) for due in order.due.values()] == [
        (0, "", False),
        (1, "no such loss", False),
        (2, "no such rate", False),
        (3, "", True),
    ]
    assert order.batches[0].commands == ("m-000003",)
    order.apply(CommandDone(command="m-000001", version=0, error="no such loss"))
    assert list(order.due) == ["m-000000", "m-000002", "m-000003"]
