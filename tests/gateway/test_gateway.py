"""The gateway's routes over a simulated run: what is taken, what is refused and how, and what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import LogUnavailable
from schemas.inbox import OTHER_CONTENT, InboxReply
from schemas.prompts import PromptSubmitted
from schemas.steps import StepCommitted
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from serve_apps.http.gateway.submission import submit
from slime_events.client.inbox import InboxClient
from slime_events.core.state.run import RunPhase
from storage.log import MAX_BATCH, Readable
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

PROMPTS = "/v1/runs/sim/prompts"
NDJSON = {"content-type": "application/x-ndjson"}


class SimulatedRun:
    """A simulation as a gateway reaches its run."""

    def __init__(self, simulation: Simulation) -> None:
        self.name, self._simulation, self.is_on = "sim", simulation, True

    async def send(self, data: bytes, sender: str, kind: str = "prompts") -> InboxReply:
        return await self._simulation.inbox.accept(data, None, sender, kind)

    async def max_bytes(self) -> int:
        if not self.is_on:
            raise LogUnavailable("run sim is not on")
        return 1 << 20

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[Readable]:
        yield self._simulation.log


class Gateway:
    """A run, its gateway, and a client for each of two sources."""

    def __init__(self, simulation: Simulation, folder: Path, **settings: Any) -> None:
        self.run, self.sources = SimulatedRun(simulation), Sources(folder)
        self.settings = GatewaySettings(poll_s=0.02, **settings)
        self.quiz, self.other = self.client("quiz"), self.client("other")

    def client(self, name: str | None) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.sources.issue(name)}"} if name else {}
        app = gateway_app(self.run, self.sources, self.settings)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8500", headers=headers)


@pytest.fixture
async def simulation(tmp_path: Path) -> AsyncIterator[Simulation]:
    async with Simulation(tmp_path, make_plan(max_staleness=1, in_prompt_order=False)) as simulation:
        yield simulation


@pytest.fixture
def gateway(simulation: Simulation, tmp_path: Path) -> Gateway:
    return Gateway(simulation, tmp_path / "gateway")


async def test_a_prompt_is_trained_on_and_its_source_hears_in_which_version(
    simulation: Simulation, gateway: Gateway
) -> None:
    answer = await gateway.quiz.post(PROMPTS, json={"key": "mine", "prompt": "outside", "label": "7"})
    assert answer.status_code == 202
    (taken,) = answer.json()["groups"]
    (event,) = simulation.events(PromptSubmitted, dataset="inbox")
    assert (event.source.key, event.source.sender, event.group) == ("mine", "quiz", taken["group"])
    where = f"/v1/runs/sim/groups/{taken['group']}"
    assert (await gateway.quiz.get(where)).json() == {"key": "mine", "group": taken["group"], "fate": "waiting"}
    assert (await gateway.other.get(where)).status_code == 404, "another source's"

    async def follow() -> list[str]:
        async with gateway.quiz.stream("GET", f"{where}/events") as stream:
            return [line async for line in stream.aiter_lines() if line]

    following = asyncio.create_task(follow())
    simulation.start_engine(Script(chunk=8))
    assert await simulation.finish() is RunPhase.FINISHED
    group = (await gateway.quiz.get(where)).json()
    step = next(each for each in simulation.events(StepCommitted) if each.step == group["step"])
    assert (group["fate"], group["version"]) == ("trained", step.version)
    assert len(group["samples"]) == simulation.plan.samples
    assert all(sample["done"] and sample["versions"] and sample["reward"] is not None for sample in group["samples"])
    lines = await following
    assert lines[0] == "event: waiting"
    assert lines[-2:] == ["event: trained", f"data: {json.dumps(group, separators=(',', ':'))}"]


async def test_a_key_is_one_prompt_of_its_source(simulation: Simulation, gateway: Gateway) -> None:
    first = (await gateway.quiz.post(PROMPTS, json={"prompt": "a"}, headers={"idempotency-key": "k"})).json()
    again = (await gateway.quiz.post(PROMPTS, json={"key": "k", "prompt": "a"})).json()
    other = (await gateway.other.post(PROMPTS, json={"key": "k", "prompt": "a"})).json()
    assert first["groups"] == again["groups"] != other["groups"]
    assert len(simulation.events(PromptSubmitted, dataset="inbox")) == 2


async def test_a_key_with_another_text_is_409_and_a_refused_line(simulation: Simulation, gateway: Gateway) -> None:
    await gateway.quiz.post(PROMPTS, json={"key": "k", "prompt": "a"})
    other = await gateway.quiz.post(PROMPTS, json={"prompt": "b"}, headers={"idempotency-key": "k"})
    assert (other.status_code, other.json()["refused"]) == (409, 1)
    assert other.json()["errors"][0]["message"].startswith(OTHER_CONTENT)
    lines = "\n".join(json.dumps({"key": key, "prompt": "b"}) for key in "jk")
    some = await gateway.quiz.post(PROMPTS, content=lines, headers=NDJSON)
    assert (some.status_code, some.json()["accepted"]) == (422, 1)
    assert [(error["line"], error["field"]) for error in some.json()["errors"]] == [(2, "key")]
    assert {event.text for event in simulation.events(PromptSubmitted, dataset="inbox")} == {"a", "b"}


async def test_each_line_stands_alone(simulation: Simulation, gateway: Gateway) -> None:
    lines = ['{"prompt": "a"}', "", "nonsense", '{"prompt": 3}', json.dumps({"prompt": "x" * 300}), '{"prompt": "b"}']
    answer = await gateway.quiz.post(PROMPTS, content="\n".join(lines), headers=NDJSON)
    body = answer.json()
    assert (answer.status_code, body["accepted"], body["refused"]) == (422, 2, 3)
    assert [(error["line"], error["field"]) for error in body["errors"]] == [(3, ""), (4, "prompt"), (5, "prompt")]
    assert len(simulation.events(PromptSubmitted, dataset="inbox")) == 2


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (400, {"content": b"[{", "headers": {"content-type": "application/json"}}),
        (400, {"json": [{"prompt": "a"}], "headers": {"idempotency-key": "k"}}),
        (413, {"json": {"prompt": "x" * 3000}}),
        (413, {"content": b'{"prompt": "x"}\n' * 200, "headers": NDJSON}),
        (415, {"content": b"prompt=a", "headers": {"content-type": "application/x-www-form-urlencoded"}}),
        (401, {"json": {"prompt": "a"}, "headers": {"authorization": "Bearer guessed"}}),
        (401, {"json": {"prompt": "a"}, "headers": {"authorization": "Basic eDp5"}}),
        (421, {"json": {"prompt": "a"}, "headers": {"host": "rebound.example:8500"}}),
        (403, {"json": {"prompt": "a"}, "headers": {"origin": "https://page.example"}}),
    ],
)
async def test_what_is_refused_leaves_nothing(
    simulation: Simulation, tmp_path: Path, status: int, request_: dict[str, Any]
) -> None:
    gateway = Gateway(simulation, tmp_path / "gateway", max_body=2000)
    answer = await gateway.quiz.post(PROMPTS, **request_)
    assert answer.status_code == status
    assert answer.json()["error"]
    assert not simulation.events(PromptSubmitted, dataset="inbox")


async def test_a_revoked_token_ends_at_once(gateway: Gateway) -> None:
    assert (await gateway.quiz.post(PROMPTS, json={"prompt": "a"})).status_code == 202
    gateway.sources.revoke("quiz")
    assert (await gateway.quiz.post(PROMPTS, json={"prompt": "b"})).status_code == 401
    assert (await gateway.other.post(PROMPTS, json={"prompt": "c"})).status_code == 202


async def test_a_stream_ends_with_the_token_of_its_source(gateway: Gateway) -> None:
    taken = (await gateway.quiz.post(PROMPTS, json={"prompt": "a"})).json()["groups"][0]["group"]
    where = f"/v1/runs/sim/groups/{taken}/events"
    streams = [asyncio.create_task(gateway.quiz.get(where)) for _ in range(3)]
    await asyncio.sleep(0.3)
    assert not any(stream.done() for stream in streams)
    gateway.sources.issue("quiz")  # the token is replaced
    async with asyncio.timeout(5.0):
        answers = await asyncio.gather(*streams)
    assert all(
        answer.text.endswith('event: error\ndata: {"error":"the token of this source was revoked"}\n\n')
        for answer in answers
    )


async def test_a_source_follows_so_many_groups_at_once(simulation: Simulation, tmp_path: Path) -> None:
    gateway = Gateway(simulation, tmp_path / "gateway", streams=2)
    taken = (await gateway.quiz.post(PROMPTS, json={"prompt": "a"})).json()["groups"][0]["group"]
    where = f"/v1/runs/sim/groups/{taken}/events"
    streams = [asyncio.create_task(gateway.quiz.get(where)) for _ in range(2)]
    await asyncio.sleep(0.2)
    refused = await gateway.quiz.get(where)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)
    following = asyncio.create_task(gateway.quiz.get(where))
    await asyncio.sleep(0.2)
    assert not following.done(), "those that ended make room"
    gateway.sources.revoke("quiz")
    assert (await asyncio.wait_for(following, 5.0)).status_code == 200


async def test_a_page_that_is_allowed_may_send(simulation: Simulation, tmp_path: Path) -> None:
    gateway = Gateway(simulation, tmp_path / "gateway", origins=("https://quiz.example",))
    origin = {"origin": "https://quiz.example"}
    preflight = await gateway.client(None).options(PROMPTS, headers=origin)
    sent = await gateway.quiz.post(PROMPTS, json={"prompt": "a"}, headers=origin)
    assert (preflight.status_code, preflight.content, sent.status_code) == (204, b"", 202)
    for answer in (preflight, sent):
        assert answer.headers["access-control-allow-origin"] == "https://quiz.example"


async def test_a_run_with_prompts_enough_or_off_asks_to_come_again(
    simulation: Simulation, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation.inbox, "_room", lambda *_: 0)
    full = await gateway.quiz.post(PROMPTS, json={"prompt": "a"})
    gateway.run.is_on = False
    off = await gateway.quiz.post(PROMPTS, json={"prompt": "a"})
    assert (full.status_code, off.status_code) == (429, 503)
    assert all(int(answer.headers["retry-after"]) > 0 for answer in (full, off))


async def test_another_run_is_not_here(gateway: Gateway) -> None:
    assert (await gateway.quiz.post("/v1/runs/other/prompts", json={"prompt": "a"})).status_code == 404
    assert (await gateway.quiz.get("/v1/runs/sim/groups/train-0-000000")).status_code == 404


async def test_the_document_names_what_is_answered(gateway: Gateway) -> None:
    document = (await gateway.client(None).get("/openapi.json")).json()
    assert set(document["paths"]["/v1/runs/{run_name}/prompts"]["post"]["responses"]) >= {"202", "413", "422", "429"}
    assert {"InboxPrompt", "Submission", "InboxFate"} <= set(document["components"]["schemas"])
    references = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert references <= set(document["components"]["schemas"])


@given(st.lists(st.sampled_from(['{"prompt": "a"}', '{"prompt": 3}', "{", "", " "]), max_size=30), st.integers(1, 40))
def test_lines_are_the_same_however_they_arrive(lines: list[str], size: int) -> None:
    async def taken(chunks: list[bytes]) -> Any:
        async def body() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        async def send(data: bytes) -> InboxReply:
            return InboxReply(accepted=True, groups=tuple(f"g{n}" for n in range(len(json.loads(data)))))

        return await submit(body(), InboxClient(send, 1 << 20), media="application/x-ndjson", key=None, most=1 << 20)

    data = "\n".join(lines).encode()
    whole = asyncio.run(taken([data]))
    assert asyncio.run(taken([data[n : n + size] for n in range(0, len(data), size)])) == whole
    assert whole.accepted == sum(line == '{"prompt": "a"}' for line in lines)
    assert whole.accepted + whole.refused == sum(bool(line.strip()) for line in lines)


@pytest.mark.parametrize(
    ("media", "content", "accepted", "refused"),
    [
        ("application/x-ndjson", b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}', 2, []),
        ("application/x-ndjson", b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n{"prompt": "b"}', 2, [(2, "prompt")]),
        ("application/json", b'\xef\xbb\xbf[{"prompt": "a"}, {"prompt": "caf\xe9"}]', 1, [(2, "prompt")]),
        ("application/json", b'{"prompt": "a", "label": 1e999}', 0, [(1, "label")]),
        ("application/json", b'{"prompt": "a", "label": 1%s}' % (b"0" * 30), 1, []),
        ("application/json", b'[{"prompt": "a", "metadata": {"n": 1%s}}]' % (b"0" * 30), 0, [(1, "metadata.n")]),
    ],
)
async def test_lines_as_people_have_them(
    simulation: Simulation, media: str, content: bytes, accepted: int, refused: list[tuple[int, str]]
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield content

    inbox = InboxClient(lambda data: SimulatedRun(simulation).send(data, "quiz"), 1 << 20)
    taken = await submit(body(), inbox, media=media, key=None, most=1 << 20)
    assert (taken.accepted, [(error.line, error.field) for error in taken.errors]) == (accepted, refused)


async def test_more_lines_than_an_answer_names(simulation: Simulation) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"{\n" * MAX_BATCH

    async def send(_: bytes) -> InboxReply:
        raise AssertionError("nothing is to be sent")

    taken = await submit(body(), InboxClient(send, 1 << 20), media="application/jsonl", key=None, most=1 << 20)
    assert (taken.refused, len(taken.errors), taken.more) == (11 * MAX_BATCH, 10 * MAX_BATCH, MAX_BATCH)


@pytest.mark.parametrize(
    ("settings", "insecure", "is_fine"),
    [
        ({}, False, True),
        ({"host": "::1"}, False, True),
        ({"host": "10.0.0.1"}, False, False),
        ({"host": "10.0.0.1"}, True, True),
        ({"host": "10.0.0.1", "tls_cert": "c", "tls_key": "k"}, False, True),
        ({"tls_cert": "c"}, False, False),
        ({"host": "0.0.0.0"}, True, False),
        ({"host": "0.0.0.0", "hosts": ("quiz.example",)}, True, True),
    ],
)
def test_tokens_do_not_cross_a_network_in_clear_text(settings: Any, insecure: bool, is_fine: bool) -> None:
    from schemas.errors import InvalidValue

    with contextlib.nullcontext() if is_fine else pytest.raises(InvalidValue):
        GatewaySettings(**settings, insecure=insecure).checked()


def test_a_token_is_nowhere(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    token = sources.issue("quiz")
    admitted = sources.admitted(token)
    assert admitted is not None
    assert admitted[0] == "quiz"
    assert Sources(tmp_path).admitted(token) == admitted
    file = tmp_path / "gateway" / "sources.json"
    assert token not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert sources.issue("quiz") != token
    assert Sources(tmp_path).admitted(token) is None, "rotated"
