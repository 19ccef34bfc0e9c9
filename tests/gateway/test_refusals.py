"""Test what is refused, before a route and by what a route raises: a status, a sentence in JSON, and a line
in a log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from schemas.errors import (
    ConfigError,
    DeadlineExceeded,
    EventTooLarge,
    InboxFull,
    LogUnavailable,
    RunIsOver,
    RunNotFound,
    SlimeEventsError,
    UnwritableEvent,
)
from serve_apps.http.gateway.refusal_log import LONGEST, MOST, WINDOW_S, RefusalLog
from serve_apps.http.gateway.refusals import Guard, Refused, answer, host_of, read_body, refusals, says_more, whole_body
from serve_apps.http.gateway.settings import GatewaySettings

ORIGIN = "https://quiz.example"


def client_of(error: BaseException | None = None, **more: Any) -> httpx.AsyncClient:
    app = FastAPI()

    @app.get("/")
    async def fail(request: Request) -> dict[str, str]:
        if error is not None:
            raise error
        return {"state": str(request.state._state)}

    refusals(app, GatewaySettings(**more))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8500")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused(418, "no", {"X-A": "b"}), 418),
        (RecursionError("deep"), 400),
        (ClientDisconnect(), 400),
        (HTTPException(409, "no", {"X-A": "b"}), 409),
        (RunNotFound("no"), 404),
        (UnwritableEvent("no"), 400),
        (EventTooLarge("no"), 413),
        (InboxFull("no"), 429),
        (RunIsOver("no"), 409),
        (LogUnavailable("no"), 503),
        (DeadlineExceeded("no"), 503),
        (ConfigError("no"), 500),
        (SlimeEventsError("no"), 500),
        (KeyError("no"), 500),
    ],
)
async def test_each_error_has_its_status(error: Exception, status: int) -> None:
    async with client_of(error) as client:
        answer = await client.get("/")
    assert answer.status_code == status
    assert answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers.get("retry-after") == ("2" if status in (429, 503) else None)
    assert answer.headers.get("x-a") == ("b" if hasattr(error, "headers") else None)


async def test_why_is_told_to_the_client_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for error in (Refused(409, "because"), RunNotFound("because"), UnwritableEvent("because")):
        caplog.clear()
        async with client_of(error) as client:
            answer = await client.get("/")
        assert answer.json() == {"error": "because"}
        (line,) = refusal_lines(caplog)
        assert line.startswith(f"refused: {answer.status_code} GET / of nobody at 127.0.0.1: because")


async def test_what_is_no_route_is_told_so() -> None:
    async with client_of() as client:
        missing, wrong = await client.get("/none"), await client.post("/")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert wrong.headers["allow"] == "GET"
    assert missing.json()["error"]


def refusal_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused")]


@pytest.mark.parametrize(
    ("error", "lines"), [(None, 0), (InboxFull("no"), 0), (ConfigError("no"), 0), (Refused(400, "no"), 1)]
)
async def test_only_what_the_client_did_wrong_is_logged(
    caplog: pytest.LogCaptureFixture, error: Exception | None, lines: int
) -> None:
    async with client_of(error) as client:
        await client.get("/")
    assert len(refusal_lines(caplog)) == lines


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", "127.0.0.1:8500")], 200),
        ([("host", "LOCALHOST")], 200),
        ([("host", "[::1]:1")], 200),
        ([("host", "evil.example")], 421),
        ([("host", "127.0.0.1, evil.example")], 421),
        ([("host", "127.0.0.1"), ("host", "evil.example")], 421),
        ([("host", "127.0.0.1"), ("origin", ORIGIN)], 200),
        ([("host", "127.0.0.1"), ("origin", "https://evil.example")], 403),
        ([("host", "127.0.0.1"), ("origin", "null")], 403),
    ],
)
async def test_who_may_ask(headers: list[tuple[str, str]], status: int) -> None:
    async with client_of(origins=(ORIGIN,)) as client:
        answer = await client.get("/", headers=headers)
    assert answer.status_code == status
    of_page = status == 200 and "origin" in dict(headers)
    assert answer.headers.get("access-control-allow-origin") == (ORIGIN if of_page else None)
    assert answer.headers.get("vary") == ("Origin" if of_page else None)


async def test_a_page_asks_first_what_it_may_send() -> None:
    async with client_of(origins=(ORIGIN,)) as client:
        preflight = await client.options("/", headers={"origin": ORIGIN})
        other = await client.options("/")
        refused = await client.options("/", headers={"origin": "https://evil.example"})
    assert (preflight.status_code, other.status_code, refused.status_code) == (204, 405, 403)
    allowed = preflight.headers["access-control-allow-headers"]
    assert {word.strip().lower() for word in allowed.split(",")} == {"authorization", "content-type", "idempotency-key"}


async def test_what_is_no_request_goes_through() -> None:
    seen: list[str] = []

    async def app(scope: Any, _: Any, __: Any) -> None:
        seen.append(scope["type"])

    await Guard(app, GatewaySettings())({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]


async def test_what_others_put_into_the_state_stays() -> None:
    seen: list[Any] = []

    async def app(scope: Any, _: Any, __: Any) -> None:
        seen.append(scope["state"])

    guard = Guard(app, GatewaySettings())
    scope: dict[str, Any] = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")]}
    for scope_ in (scope, scope | {"state": {"a": 1}}):
        await guard(scope_, None, None)  # type: ignore[arg-type]
    assert seen == [{}, {"a": 1}]


@settings(max_examples=50)
@given(st.text(st.sampled_from("aZ0.-_[]:%é "), max_size=12))
def test_a_host_is_a_name_or_nothing(header: str) -> None:
    host = host_of(header)
    assert host is None or (host and host in header.lower())
    assert host_of(f"{host}:80") == host or host is None or ":" in host


@pytest.mark.parametrize(
    ("header", "host"),
    [("A.b:80", "a.b"), ("[::1]", "::1"), ("[::1]:80", "::1"), ("a:b", None), ("a:123456", None), ("", None)],
)
def test_a_host_has_no_port(header: str, host: str | None) -> None:
    assert host_of(header) == host


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def request(length: str | None = None, **more: Any) -> Request:
    headers = [] if length is None else [(b"content-length", length.encode())]
    return Request({"type": "http", "method": "GET", "headers": headers, "client": ("1.2.3.4", 5), "state": {}, **more})


@pytest.mark.parametrize(
    ("length", "more"),
    [(None, False), ("9", False), ("10", False), ("11", True), ("x", False), ("0" * 20 + "1", True), ("0" * 20, False)],
)
def test_a_length_is_believed_where_it_is_too_much(length: str | None, more: bool) -> None:
    assert says_more(request(length), 10) is more


async def test_a_body_has_so_many_bytes() -> None:
    assert await whole_body(pieces(b"ab", b"", b"cd"), 4) == b"abcd"
    with pytest.raises(Refused) as error:
        await whole_body(pieces(b"ab", b"cd"), 3, "send less")
    assert error.value.status == 413
    assert "send less" in str(error.value)
    left = pieces(b"ab", b"cd", b"ef")
    with pytest.raises(Refused):
        await whole_body(left, 1)
    assert await anext(left) == b"cd", "no more is read"


async def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    with pytest.raises(Refused) as error:
        await read_body(request("11"), 10, "send less")
    assert error.value.status == 413

    async def receive() -> Any:
        return {"type": "http.request", "body": b"0123456789", "more_body": False}

    whole = Request(request("10").scope, receive)
    assert await read_body(whole, 10) == b"0123456789"


def test_a_refusal_has_headers_of_its_own() -> None:
    headers = {"a": "b"}
    refused = Refused(400, "no", headers)
    headers.clear()
    assert (refused.headers, Refused(400, "no").headers) == ({"a": "b"}, {})
    assert dict(answer(400, "no", {"x-a": "b"}).headers)["x-a"] == "b"


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def request_with(**state: Any) -> Request:
    scope = {"route": SimpleNamespace(path="/v1/x/{key}"), "path_params": {"key": "secret-in-path"}}
    headers = [(b"authorization", b"Bearer secret-token"), (b"x-api-key", b"secret-key")]
    request_ = request(**scope)
    request_.scope["headers"] = headers
    request_.scope["state"] = state
    return request_


def test_a_line_says_who_was_refused_what_and_why(caplog: pytest.LogCaptureFixture) -> None:
    own = RefusalLog(Clock())
    own.write(request_with(who="quiz", why="no"), 403)
    own.write(request(client=None), 404)
    assert refusal_lines(caplog) == [
        "refused: 403 GET /v1/x/{key} of quiz at 1.2.3.4: no",
        "refused: 404 GET - of nobody at ?: Not Found",
    ]


def test_no_line_has_what_a_client_proved_itself_with(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog(Clock()).write(request_with(why="secret-token secret-key secret-in-path \n\x1b other"), 403)
    (line,) = refusal_lines(caplog)
    assert "secret" not in line
    assert line.isprintable()
    assert "other" in line


def test_a_reason_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    own = RefusalLog(Clock())
    for length in (LONGEST, 100 * LONGEST):
        own.write(request_with(who="quiz", why="a" * length), 400)
    short, long = (line.count("a" * 10) for line in refusal_lines(caplog))
    assert short == long or long < 2 * short
    assert short >= LONGEST // 10 - 2


def test_so_many_lines_a_minute_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    own = RefusalLog(clock)
    for _ in range(MOST + 3):
        own.write(request_with(), 400)
    assert len(refusal_lines(caplog)) == MOST
    clock.now += WINDOW_S - 0.1
    own.write(request_with(), 400)
    assert len(refusal_lines(caplog)) == MOST
    clock.now += 0.1
    own.write(request_with(), 400)
    more = refusal_lines(caplog)[MOST:]
    assert more[0] == "refused: 4 more requests"
    assert len(more) == 2
    clock.now += WINDOW_S
    own.write(request_with(), 400)
    assert len(refusal_lines(caplog)) == MOST + 3, "none was left out"
    for _ in range(MOST - 1):
        own.write(request_with(), 400)
    assert len(refusal_lines(caplog)) == 2 * MOST + 2
    own.write(request_with(), 400)
    assert len(refusal_lines(caplog)) == 2 * MOST + 2
    assert all(record.levelno == logging.WARNING for record in caplog.records)
