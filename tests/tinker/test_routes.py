"""The routes of the protocol: what is always answered, what is never done here, and how large a call may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.commands import CommandGiven, CommandKind
from serve_apps.http.gateway.sources import Scope
from serve_apps.http.tinker import app
from serve_apps.http.tinker.app import BYTES_OF_A_TOKEN, MOST_CALL
from serve_apps.http.tinker.calls import PROTOBUF
from serve_apps.http.tinker.wire import proto
from tests.tinker.lone import MODEL_ID, SERVED, SESSION, Lone


@pytest.fixture
def lone(tmp_path: Path) -> Lone:
    return Lone(tmp_path)


async def sent(lone: Lone, route: str, content: Any, kind: str = "application/json", **headers: str) -> httpx.Response:
    async with lone.client(**headers) as client:
        return await client.post(f"/{route}", content=content, headers={"content-type": kind})


async def test_what_is_always_answered(lone: Lone) -> None:
    answers = {
        "client/config": {},
        "client/dynamic_config": {},
        "session_heartbeat": {"type": "session_heartbeat"},
        "sessions/s/finish": {},
        "telemetry": {"status": "accepted"},
    }
    for route, expected in answers.items():
        answer = await lone.post(route, {})
        assert (answer.status_code, answer.json()) == (200, expected)
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("route", ["save_weights_external", "copy_weights", "create_custom_loss"])
async def test_what_is_never_done_here_is_refused(lone: Lone, route: str) -> None:
    answer = await lone.post(route, {})
    assert answer.status_code == 400
    assert route in answer.json()["error"]


async def test_the_run_says_what_it_serves(lone: Lone) -> None:
    async with lone.client() as client:
        capabilities = (await client.get("/get_server_capabilities")).json()
        (model,) = capabilities["supported_models"]
        sampler = await client.get(f"/samplers/{SESSION}:sample:1:v4")
        unknown = await client.get("/samplers/mine")
        health = await client.get("/healthz", headers={"x-api-key": ""})
    assert model == {
        "model_name": SERVED.name,
        "max_context_length": SERVED.longest,
        "trainable": True,
        "sampleable": True,
    }
    assert sampler.json()["base_model"] == SERVED.name
    assert unknown.status_code == 400
    assert health.json() == {"status": "ok"}
    session = (await lone.post("create_session", {})).json()
    assert session["type"] == "create_session"
    assert session["session_id"] != (await lone.post("create_session", {})).json()["session_id"]


async def test_a_key_is_for_this_protocol(lone: Lone) -> None:
    for scope, status in ((Scope.TINKER, 200), (Scope.PROMPTS, 403)):
        key = f"tml-{lone.sources.issue(scope.value, [scope])}"
        assert (await sent(lone, "telemetry", b"{}", **{"x-api-key": key})).status_code == status


async def test_there_is_no_document_of_it(lone: Lone) -> None:
    async with lone.client() as client:
        for path in ("openapi.json", "docs", "redoc"):
            assert (await client.get(f"http://127.0.0.1:8500/{path}")).status_code == 404


OF_SAMPLE = MOST_CALL + BYTES_OF_A_TOKEN * SERVED.longest


@pytest.mark.parametrize(("route", "most"), [("weights_info", MOST_CALL), ("asample", OF_SAMPLE)])
@pytest.mark.parametrize("more", [0, 1])
async def test_a_call_has_so_many_bytes(lone: Lone, route: str, most: int, more: int) -> None:
    answer = await sent(lone, route, b"{".ljust(most + more))
    assert answer.status_code == (413 if more else 400), "it is none, but it is read"


async def test_a_gateway_may_take_less(tmp_path: Path) -> None:
    lone = Lone(tmp_path, max_body=100)
    for route in ("weights_info", "asample"):
        assert (await sent(lone, route, b"{".ljust(101))).status_code == 413


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"model_id": 1}', b'"\\ud800"', b"[" * 100_000, b"nan", b"\xff"])
async def test_a_body_that_is_no_call_is_refused(lone: Lone, body: bytes) -> None:
    await lone.begin()
    answer = await sent(lone, "optim_step", body)
    assert answer.status_code == 400
    assert len(await lone.events(CommandGiven)) == 1


async def test_only_calls_that_change_the_model_have_numbers(lone: Lone) -> None:
    await lone.begin()
    body = {"model_id": MODEL_ID, "seq_id": 1}
    for route in ("get_info", "weights_info", "create_model"):
        await lone.post(route, body)
    assert len(await lone.events(CommandGiven)) == 1
    for number, route in enumerate(("optim_step", "load_weights", "save_weights", "save_weights_for_sampler"), 1):
        wrong = {"adam_params": [], "path": 7, "kind": 7}
        assert (await lone.post(route, {"model_id": MODEL_ID, "seq_id": number, **wrong})).status_code == 400
        refused = await lone.last()
        assert (refused.number, refused.kind.value, refused.source) == (number, route, "test")


def a_pass(number: int, **more: Any) -> bytes:
    request = proto.ForwardBackwardRequest(model_id=MODEL_ID, seq_id=number, loss_fn="cross_entropy", **more)
    return bytes(request.SerializeToString())


async def test_a_pass_is_plain_protobuf(lone: Lone) -> None:
    await lone.begin()
    for kind, headers in (("application/json", {}), (PROTOBUF, {"content-encoding": "gzip"})):
        assert (await sent(lone, "forward_backward", a_pass(1), kind, **headers)).status_code == 415
    assert (await sent(lone, "forward_backward", b"\xff", PROTOBUF)).status_code == 400
    assert len(await lone.events(CommandGiven)) == 1


@pytest.mark.parametrize("forward_only", [True, False])
async def test_a_pass_that_is_refused_has_its_kind_and_number(lone: Lone, forward_only: bool) -> None:
    await lone.begin()
    assert (await sent(lone, "forward_backward", a_pass(4, forward_only=forward_only), PROTOBUF)).status_code == 400
    refused = await lone.last()
    kind = CommandKind.FORWARD if forward_only else CommandKind.FORWARD_BACKWARD
    assert (refused.number, refused.kind, refused.source) == (4, kind, "test")
    assert refused.refused


async def pieces(data: bytes, size: int, read: list[int]) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        read.append(len(data[at : at + size]))
        yield data[at : at + size]


@pytest.mark.parametrize("size", [7, 100, 256, 300, 100_000])
@pytest.mark.parametrize("is_said", [True, False])
async def test_a_pass_that_is_too_large_has_its_number_however_it_comes(
    tmp_path: Path, size: int, is_said: bool
) -> None:
    lone, read = Lone(tmp_path, max_body=10_000), list[int]()
    await lone.begin()
    data = a_pass(3) + b"x" * 20_000
    headers = {"content-length": str(len(data))} if is_said else {}
    answer = await sent(lone, "forward_backward", pieces(data, size, read), PROTOBUF, **headers)
    assert answer.status_code == 413
    refused = await lone.last()
    assert (refused.number, refused.kind, refused.source) == (3, CommandKind.FORWARD, "test")
    assert sum(read) <= (app.BEGIN if is_said else 10_000) + size, "no more is read"


async def test_a_pass_of_all_bytes_is_read(tmp_path: Path) -> None:
    whole = a_pass(3)
    for most, status in ((len(whole), 400), (len(whole) - 1, 413)):
        lone = Lone(tmp_path / str(most), max_body=most)
        await lone.begin() if most > 150 else None
        assert (await sent(lone, "forward_backward", whole, PROTOBUF)).status_code == status


async def test_a_large_body_of_another_form_takes_no_number(tmp_path: Path) -> None:
    lone = Lone(tmp_path, max_body=1000)
    await lone.begin()
    assert (await sent(lone, "forward_backward", b"x" * 2000, PROTOBUF)).status_code == 413
    assert len(await lone.events(CommandGiven)) == 1
