"""Test both Python clients, step by step: how long they wait, what they raise, and what they send."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from schemas.errors import AccessDenied, InboxFull, InvalidValue, LogUnavailable, MissingPart, RunIsOver, RunNotFound
from schemas.inbox import Fate
from slime_events.app import gateway_client
from slime_events.app.cli import run_list
from slime_events.app.gateway_client import AsyncGatewayClient, GatewayClient
from slime_events.core.run import run_folder
from slime_events.model.run_status import RunStatus

URL = "http://127.0.0.1:8500"
TAKEN = {"accepted": 1, "refused": 0, "groups": [], "errors": []}
Said = tuple[int, Any] | tuple[int, Any, str] | None
"""Status, body and Retry-After; None where the connection breaks."""


class Scene:
    """A gateway that says one thing after the other, and a clock that only pauses move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *replies: Said) -> None:
        self.now, self.pauses, self.requests = 0.0, list[float](), list[httpx.Request]()
        self._replies = list(replies)
        fake_time = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(gateway_client, "time", fake_time)
        monkeypatch.setattr(gateway_client, "asyncio", SimpleNamespace(sleep=self.sleep_async))

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if (reply := self._replies.pop(0)) is None:
            raise httpx.ReadError("gone")
        body = reply[1] if isinstance(reply[1], bytes) else json.dumps(reply[1]).encode()
        return httpx.Response(reply[0], content=body, headers={"retry-after": reply[2]} if len(reply) > 2 else {})

    def ask(self, kind: str, question: Callable[[Any], Any], url: str = URL, **more: Any) -> Any:
        """Ask with either client; collect everything from one that follows."""
        transport = httpx.MockTransport(self._answer)
        if kind == "sync":
            with GatewayClient(url, "sim", "token", transport=transport, **more) as client:
                followed = question(client)
                followed = list(followed) if inspect.isgenerator(followed) else followed
            assert client._http.is_closed
            return followed

        async def whole() -> Any:
            async with AsyncGatewayClient(url, "sim", "token", transport=transport, **more) as client:
                answer = question(client)
                answer = [item async for item in answer] if inspect.isasyncgen(answer) else await answer
            assert client._http.is_closed
            return answer

        return asyncio.run(whole())


BOTH = pytest.mark.parametrize("kind", ["sync", "async"])


def submit(client: Any) -> Any:
    return client.submit([{"key": "k"}, {"key": "l"}])


@BOTH
@pytest.mark.parametrize(
    ("question", "method", "path", "body"),
    [
        (submit, "POST", "prompts", b'{"key":"k"}\n{"key":"l"}'),
        (lambda client: client.trajectories([{"key": "k"}]), "POST", "trajectories", b'{"key":"k"}'),
        (lambda client: client.rewards([{"key": "k"}]), "POST", "rewards", b'{"key":"k"}'),
    ],
)
def test_items_are_sent_as_lines_with_the_token(
    monkeypatch: pytest.MonkeyPatch, kind: str, question: Any, method: str, path: str, body: bytes
) -> None:
    scene = Scene(monkeypatch, (202, TAKEN))
    assert scene.ask(kind, question).accepted == 1
    (sent,) = scene.requests
    assert (sent.method, sent.url.path, sent.content) == (method, f"/v1/runs/sim/{path}", body)
    assert sent.headers["authorization"] == "Bearer token"
    assert sent.headers["content-type"] == "application/x-ndjson"


@BOTH
def test_what_was_refused_in_part_is_an_answer(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    refused = {**TAKEN, "refused": 1, "errors": [{"line": 2, "field": "prompt", "message": "no"}]}
    for status in (409, 422):
        taken = Scene(monkeypatch, (status, refused)).ask(kind, submit)
        assert (taken.refused, taken.errors[0].line) == (1, 2)


@BOTH
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (300, InvalidValue),
        (400, InvalidValue),
        (401, AccessDenied),
        (403, AccessDenied),
        (404, RunNotFound),
        (409, RunIsOver),
        (413, InvalidValue),
        (500, InvalidValue),
    ],
)
def test_a_no_is_no_reason_to_wait(
    monkeypatch: pytest.MonkeyPatch, kind: str, status: int, error: type[Exception]
) -> None:
    scene = Scene(monkeypatch, (status, {"error": "because"}))
    with pytest.raises(error, match="because"):
        scene.ask(kind, submit)
    assert scene.pauses == []


@BOTH
def test_pauses_grow_to_a_bound_unless_it_is_told_when(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    busy: list[Said] = [
        (503, {}),
        (429, {}),
        None,
        (503, {}, "7"),
        (503, {}, "soon"),
        (503, {}),
        (503, {}),
        (202, TAKEN),
    ]
    scene = Scene(monkeypatch, *busy)
    scene.ask(kind, submit)
    assert scene.pauses == [0.5, 1.0, 2.0, 7.0, 8.0, 10.0, 10.0]


@BOTH
@pytest.mark.parametrize(
    ("reply", "error"), [((429, {}), InboxFull), ((503, {}), LogUnavailable), (None, LogUnavailable)]
)
def test_it_waits_as_long_as_it_was_told_to(
    monkeypatch: pytest.MonkeyPatch, kind: str, reply: Said, error: type[Exception]
) -> None:
    scene = Scene(monkeypatch, *[reply] * 4)
    with pytest.raises(error):
        scene.ask(kind, submit, wait_s=1.5)
    assert scene.pauses == [0.5, 1.0, 2.0], "at the end of its time it asks once more"


def test_that_it_waits_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    Scene(monkeypatch, (503, {}), None, (503, {}), (202, TAKEN)).ask("sync", submit)
    assert len(caplog.records) == 1
    caplog.clear()
    Scene(monkeypatch, (202, TAKEN)).ask("sync", submit)
    assert caplog.records == []


class Folders:
    """Runs whose folders are here, by name, and how each is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **runs: RunStatus | None) -> None:
        def find(name: str) -> str:
            if name not in runs:
                raise RunNotFound(name)
            return name

        def row(folder: str) -> Any:
            return None if (status := runs[folder]) is None else SimpleNamespace(status=status)

        monkeypatch.setattr(run_folder, "find_run", find)
        monkeypatch.setattr(run_list, "summarised", row)


@BOTH
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_run_that_is_over_here_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, kind: str, host: str) -> None:
    Folders(monkeypatch, sim=RunStatus.FINISHED)
    scene = Scene(monkeypatch, None)
    with pytest.raises(RunIsOver):
        scene.ask(kind, submit, url=f"http://{host}:8500")
    assert scene.pauses == []


@pytest.mark.parametrize(
    ("url", "runs"),
    [
        (URL, {}),
        (URL, {"sim": None}),
        (URL, {"sim": RunStatus.RUNNING}),
        (URL, {"other": RunStatus.FINISHED}),
        ("http://gateway.example:8500", {"sim": RunStatus.FINISHED}),
    ],
)
def test_others_are_waited_for(monkeypatch: pytest.MonkeyPatch, url: str, runs: dict[str, RunStatus | None]) -> None:
    Folders(monkeypatch, **runs)
    scene = Scene(monkeypatch, None, (202, TAKEN))
    assert scene.ask("sync", submit, url=url).accepted == 1
    assert scene.pauses == [0.5]


@pytest.mark.parametrize(
    ("body", "reason"), [(b"<html>", "<html>"), (b"[]", r"\[\]"), (b'{"a": 1}', '"a"'), (b"x" * 300, "(?<!x)x{200}$")]
)
def test_what_is_no_reason_is_shown_as_it_came(monkeypatch: pytest.MonkeyPatch, body: bytes, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        Scene(monkeypatch, (400, body)).ask("sync", submit)


def test_why_nobody_answered_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LogUnavailable, match="ReadError: gone"):
        Scene(monkeypatch, None).ask("sync", submit, wait_s=-1.0)


def fate(name: str) -> Said:
    return 200, {"key": "k", "group": "g", "fate": name}


@BOTH
@pytest.mark.parametrize("last", ["trained", "rejected"])
def test_a_group_is_followed_change_by_change_to_its_end(monkeypatch: pytest.MonkeyPatch, kind: str, last: str) -> None:
    scene = Scene(monkeypatch, *map(fate, ("waiting", "waiting", "accepted", last)))
    fates = scene.ask(kind, lambda client: client.follow("g", every_s=3.0))
    assert [each.fate.value for each in fates] == ["waiting", "accepted", last]
    assert scene.pauses == [3.0] * 3
    assert {(request.method, request.url.path) for request in scene.requests} == {("GET", "/v1/runs/sim/groups/g")}


@BOTH
def test_it_is_looked_at_each_second(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    scene = Scene(monkeypatch, fate("waiting"), fate("trained"))
    scene.ask(kind, lambda client: client.follow("g"))
    assert scene.pauses == [1.0]


@BOTH
def test_a_fate_is_told(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert Scene(monkeypatch, fate("waiting")).ask(kind, lambda client: client.fate("g")).fate is Fate.WAITING


def test_without_its_part_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingPart):
        GatewayClient(URL, "sim", "t")


def test_each_request_has_so_many_seconds() -> None:
    with GatewayClient(URL, "sim", "t", timeout_s=7.0) as client:
        assert client._http.timeout == httpx.Timeout(7.0)
