"""The gateway as a role of its run: it is there with the run, again when it was lost, and ends with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import nats
import pytest

from schemas.errors import InvalidValue
from schemas.rewards import RewardAssigned
from schemas.workers import WorkerJoined, WorkerLost
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.launch.preflight import check_start
from slime_events.core.config.gateway import DEFAULT, RunGatewaySettings
from storage.nats.accounts import Access
from storage.nats.ports import free_port
from storage.open_log import live_address
from tests.run.cheap import LocalCluster, Parts, cheap_parts, lose
from tests.run.tiny import SAMPLES, Watching, events_of, of, run_with, tiny

RUN = "role"
ANSWER_S = 60.0
NEEDED = ["--hf-checkpoint", "model", "--prompt-data", "prompts.jsonl", "--rm-type", "math", "--num-rollout", "1"]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[LocalCluster]:
    """Collect the clusters of all launches."""
    clusters_: list[LocalCluster] = []
    begin = LocalCluster.__init__
    monkeypatch.setattr(LocalCluster, "__init__", lambda self, *args: (begin(self, *args), clusters_.append(self))[0])
    return clusters_


def test_it_comes_back_on_its_port(tmp_path: Path, clusters: list[LocalCluster]) -> None:
    run, port = tmp_path / "runs" / RUN, free_port()
    url, view = f"http://127.0.0.1:{port}", Watching()
    answers: list[httpx.Response] = []

    async def lose_it_in_between(view: Watching) -> None:
        await view.until(lambda progress: progress.state.version >= 0)
        headers = {"authorization": f"Bearer {Sources(run).issue('quiz')}"}
        transport = httpx.AsyncHTTPTransport(retries=0)
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=ANSWER_S, transport=transport) as client:
            answers.append(await sent(client))
            lose(clusters[-1], "gateway")
            answers.append(await sent(client))
            await ask_as_documented(run, (await client.get("/asyncapi.json")).json())
            trajectory = {"key": "made", "prompt": "1+1", "samples": [{"text": "2", "reward": 1.0}] * SAMPLES}
            answers.append(await client.post(f"/v1/runs/{RUN}/trajectories", json=trajectory))
            name = answers[-1].json()["groups"][0]["group"]
            await decided(client, name)
            nobody_grades = {"key": "two", "prompt": "1+1", "metadata": {"rm_type": "maths"}}
            answers.append(await client.post(f"/v1/runs/{RUN}/prompts", json=nobody_grades))
        os.kill(os.getpid(), signal.SIGTERM)

    with cheap_parts(Parts()):
        settings = tiny(tmp_path, RUN, rollout={"num_rollout": 100_000}, gateway={"gateway": f"127.0.0.1:{port}"})
        asyncio.run(run_with(settings, lose_it_in_between, view=view))
    assert [answer.status_code for answer in answers] == [202, 202, 202, 422]
    assert [error["field"] for error in answers[-1].json()["errors"]] == ["metadata.rm_type"]
    assert answers[0].json()["groups"] == answers[1].json()["groups"], "one prompt, sent twice"
    events = events_of(run)
    assert [event.value for event in of(events, RewardAssigned) if event.grader == "outside:quiz"] == [1.0] * SAMPLES
    joined = [event for event in of(events, WorkerJoined) if event.role == "gateway"]
    assert [event.facts["url"] for event in joined] == [url, url]
    assert [event.worker for event in of(events, WorkerLost)] == [joined[0].worker]
    assert [note for note in view.notes if url in note]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


async def ask_as_documented(run: Path, document: dict[str, Any]) -> None:
    """Each example of the document, as a producer over NATS: its reply is what the document says."""
    address = live_address(run, Access.PRODUCER)
    assert address is not None
    nc = await nats.connect(**address.options())
    fates = await nc.subscribe(document["channels"]["fates"]["address"])
    for name in [name for name, operation in document["operations"].items() if operation["action"] == "send"]:
        (example,) = document["components"]["messages"][name]["examples"]
        subject = document["channels"][name]["address"]
        reply = await nc.request(subject, json.dumps(example["payload"]).encode(), timeout=ANSWER_S)
        schema = document["components"]["messages"][f"{name}-reply"]["payload"]
        jsonschema.validate(json.loads(reply.data), schema | {"components": document["components"]})
    # The first example is a prompt, and the run continues: it comes to an end of some kind.
    reply_ = json.loads((await fates.next_msg(timeout=ANSWER_S)).data)
    jsonschema.validate(
        reply_, document["components"]["messages"]["fates"]["payload"] | {"components": document["components"]}
    )
    assert reply_["key"] == "quiz-1"
    await nc.close()


async def decided(client: httpx.AsyncClient, group: str) -> None:
    """Until the run has a verdict on the group."""
    async with asyncio.timeout(ANSWER_S), client.stream("GET", f"/v1/runs/{RUN}/groups/{group}/events") as stream:
        async for line in stream.aiter_lines():
            if line in ("event: accepted", "event: trained"):
                return


async def sent(client: httpx.AsyncClient) -> httpx.Response:
    """The answer to a prompt, as soon as there is one."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            try:
                answer = await client.post(
                    f"/v1/runs/{RUN}/prompts", json={"key": "one", "prompt": "1+1", "label": "2"}
                )
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code != 503:
                return answer
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "listens"),
    [
        (["--gateway"], DEFAULT),
        (["--gateway", "127.0.0.1:9000"], "127.0.0.1:9000"),
        (["--gateway", "9000", "--gateway", "off"], None),
        ([], None),
    ],
)
def test_how_it_is_asked_for(words: list[str], listens: str | None) -> None:
    assert parse_train([*NEEDED, *words]).settings.gateway.listens == listens


@pytest.mark.parametrize(
    "wrong",
    [
        {"gateway": "0.0.0.0:8500"},
        {"gateway": "0.0.0.0:8500", "gateway_insecure": True},
        {"gateway": "nowhere"},
        {"gateway": "127.0.0.1:0"},
        {"gateway": "127.0.0.1:8500", "gateway_tls_key": "key.pem"},
    ],
)
def test_what_it_refuses_names_the_run_s_flags(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match="--gateway"):
        GatewaySettings.of_run(RunGatewaySettings(**wrong))  # type: ignore[arg-type]


def test_a_port_that_is_taken_stops_a_run_before_it_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidValue, match=f"--gateway {own}"):
            check_start(tiny(tmp_path, RUN, gateway={"gateway": own}))
