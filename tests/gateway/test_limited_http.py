"""HTTP of one connection, byte by byte and second by second, over a transport that keeps what happened to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serve_apps.http.gateway.limited_http import too_many
from tests.gateway.door import GET, WAIT, Door
from tests.gateway.test_connections import One


@pytest.fixture
async def door(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    door = Door(monkeypatch)
    yield door
    door.go.set()
    await door.settled()
    door.http.connection_lost(None)
    await asyncio.gather(*door.state.tasks, return_exceptions=True)
    assert len(door.shared) == 0


def post(path: str, length: int, body: bytes = b"", more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{more}Content-Length: {length}\r\n\r\n".encode() + body


async def test_a_request_is_answered_and_the_connection_stays(door: Door) -> None:
    assert door.http.address == "10.0.0.1"
    assert len(door.shared) == 1
    await door.get(GET)
    await door.get(GET)
    assert (door.statuses, door.calls, door.transport.is_closing()) == ([200, 200], ["/", "/"], False)


async def test_who_says_nothing_is_closed_without_a_word(door: Door) -> None:
    door.look(1.0)
    assert not door.transport.closed
    door.look(1.01)
    assert door.transport.closed
    assert not door.transport.written
    door.http.data_received(GET)
    assert door.calls == [], "nothing is taken any more"


async def test_a_head_has_its_seconds_from_the_first_byte_of_the_connection(door: Door) -> None:
    await door.get(b"GET / HTTP/1.1\r\n", at=0.5)
    await door.get(b"X-A: b\r\n", at=0.9)
    door.look(1.0)
    assert door.statuses == []
    for at in (1.01, 1.02):
        door.look(at)
    assert door.statuses == [408], "it is logged once"
    assert "1 s" in door.notes
    assert door.transport.closed


async def test_the_next_head_has_its_own_seconds_from_its_first_byte(door: Door) -> None:
    await door.get(GET)
    door.look(50.0)
    assert not door.transport.closed, "an idle connection is uvicorn's to close"
    await door.get(b"GET / HTTP/1.1\r\n", at=50.0)
    await door.get(b"X-A: b\r\n", at=50.9)
    door.look(51.0)
    assert not door.transport.closed
    door.look(51.01)
    assert door.statuses == [200, 408]


async def test_an_answer_may_take_long(door: Door) -> None:
    await door.get(WAIT)
    door.look(1000.0)
    assert not door.transport.is_closing()
    await door.get(b"GET / HT", at=1000.0)  # the next head, before the answer
    door.look(2000.0)
    assert not door.transport.is_closing()
    door.go.set()
    await door.settled()
    door.look(2001.0)
    assert not door.transport.is_closing()
    door.look(2001.01)
    assert door.statuses == [200, 408], "from the answer on it is waited for"


async def test_a_body_has_to_come_so_fast(door: Door) -> None:
    await door.get(post("/read", 1000, b"x" * 40), at=10.0)
    await door.get(b"x" * 60, at=11.0)
    door.look(11.99)
    door.look(12.0)
    assert door.statuses == [], "as many bytes as it has to"
    await door.get(b"x" * 99, at=13.0)
    door.look(13.99)
    assert door.statuses == []
    door.look(14.0)
    assert door.statuses == [408]
    assert "2 s" in door.notes
    assert door.transport.closed


async def test_a_body_that_is_whole_is_not_late(door: Door) -> None:
    await door.get(post("/wait", 2, b"{}"))
    door.look(100.0)
    assert not door.transport.is_closing()


async def test_a_body_that_is_not_taken_is_not_late(door: Door) -> None:
    await door.get(post("/unread", 10**6, b"x" * 70_000), at=0.0)
    assert door.transport.paused
    door.look(50.0)
    assert not door.transport.closed
    await door.get(b"x" * 99)
    door.http.flow.resume_reading()
    door.look(51.99)
    assert not door.transport.closed, "its seconds begin where it may send again"
    door.look(52.0)
    assert door.statuses == [408]


async def test_who_waits_for_a_word_to_go_on_is_not_late(door: Door) -> None:
    await door.get(post("/wait", 1000, more="Expect: 100-continue\r\n"))
    door.look(50.0)
    assert not door.transport.closed


async def test_the_rest_of_what_is_answered_has_the_seconds_of_a_head(door: Door) -> None:
    await door.get(post("/", 10**6, b"x"), at=5.0)
    assert door.statuses == [200]
    await door.get(b"x" * 1000, at=5.9)
    door.look(6.0)
    assert not door.transport.closed
    door.look(6.01)
    assert door.transport.closed


async def test_no_error_is_written_into_an_answer(door: Door) -> None:
    await door.get(post("/begun", 1000, b"x"), at=0.0)
    begun = bytes(door.transport.written)
    door.look(2.0)
    assert door.transport.closed
    assert door.transport.written == begun


async def test_what_is_no_http_is_not_written_into_an_answer(door: Door) -> None:
    await door.get(GET.replace(b"/ ", b"/begun "))
    begun = bytes(door.transport.written)
    await door.get(b"\x16\x03\x01\r\n\r\n")
    assert door.transport.closed
    assert door.transport.written == begun


async def test_what_is_no_http_is_told_so(door: Door) -> None:
    await door.get(b"\x16\x03\x01\r\n\r\n")
    assert door.statuses == [400]
    assert door.notes
    assert door.transport.closed


def head(size: int) -> bytes:
    """Return a head whose path, names and values have these numbers of bytes."""
    return b"GET /aaa HTTP/1.1\r\nHost: a\r\nX-A: " + b"x" * (size - 12) + b"\r\n\r\n"


@pytest.mark.parametrize(("size", "statuses"), [(65536, [200]), (65537, [400])])
async def test_a_head_has_so_many_bytes(door: Door, size: int, statuses: list[int]) -> None:
    await door.get(head(size))
    assert door.statuses == statuses
    assert door.transport.closed is (statuses == [400])


async def test_a_head_without_end_is_refused_as_it_comes(door: Door) -> None:
    for _ in range(64):
        await door.get(b"GET / HTTP/1.1\r\nX-A: ".ljust(1024, b"x") if not door.http._in_head else b"x" * 1024)
    assert door.statuses == []
    await door.get(b"x")
    assert door.statuses == [400]
    assert door.transport.closed
    assert door.calls == []


async def test_bytes_of_a_head_are_its_own(door: Door) -> None:
    for _ in range(3):
        for part in (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ", b"x" * 30_000, b"x" * 20_000, b"\r\n\r\n"):
            await door.get(part)
    await door.get(post("/read", 60_000))
    await door.get(b"x" * 60_000)
    await door.get(b"GET / HTTP/1.1\r\nX-A: ")
    await door.get(b"x" * 60_000)
    assert door.statuses == [200] * 4


async def test_so_many_are_sent_ahead_of_an_answer(door: Door) -> None:
    await door.get(WAIT + GET * 16)
    assert not door.transport.aborted
    await door.get(GET * 100)
    assert door.transport.aborted
    assert len(door.http.pipeline) == 16, "no more of what has come is kept"


async def test_those_that_were_sent_ahead_are_answered_in_turn(door: Door) -> None:
    await door.get(WAIT + GET * 16)
    assert len(door.shared._busy) == 1
    door.go.set()
    for _ in range(20):
        await door.settled()
    assert door.statuses == [200] * 17
    assert len(door.shared._busy) == 0
    assert not door.transport.is_closing()


async def test_a_body_that_nobody_reads_yet_is_bounded(door: Door) -> None:
    await door.get(WAIT + post("/read", 10**6))
    await door.get(b"x" * 4 * 65536)
    assert not door.transport.aborted
    await door.get(b"x")
    assert door.transport.aborted


async def test_a_body_of_the_request_that_is_answered_is_the_app_s_to_bound(door: Door) -> None:
    await door.get(post("/unread", 10**6, b"x" * (4 * 65536 + 1)))
    assert not door.transport.aborted


async def test_others_get_503_where_too_many_are_answered(door: Door) -> None:
    others = [One("b") for _ in range(3)]
    for client_ in others[:2]:
        door.shared.add(client_)
        door.shared.begin(client_)
    await door.get(GET)
    assert door.statuses == [200]
    door.shared.add(others[2])
    door.shared.begin(others[2])
    for path in (b"/healthz", b"/api/v1/healthz"):
        await door.get(GET.replace(b"/ ", path + b" "))
    await door.get(GET)
    assert door.statuses == [200, 200, 200, 503]
    assert door.calls == ["/", "/healthz", "/api/v1/healthz"]
    for client_ in others:
        door.shared.remove(client_)


async def test_answers_that_nobody_waits_for_any_more_count(door: Door) -> None:
    tasks = [asyncio.create_task(door.go.wait()) for _ in range(3)]
    door.state.tasks.update(tasks[:2])
    await door.get(GET)
    assert door.statuses == [200]
    door.state.tasks.add(tasks[2])
    await door.get(GET)
    assert door.statuses == [200, 503]


async def test_who_does_not_read_is_ended(door: Door) -> None:
    await door.get(GET)
    door.transport.unread = 1000
    door.now = 10.0
    door.http.pause_writing()
    assert door.http.flow.write_paused
    door.look(14.0)
    door.transport.unread = 900
    door.look(14.5)
    assert not door.transport.aborted, "it has read what it has to"
    door.transport.unread = 801
    door.look(18.5)
    assert not door.transport.aborted
    door.look(18.75)
    assert door.transport.aborted, "not enough since then"


async def test_who_has_read_is_left_alone(door: Door) -> None:
    await door.get(GET)
    door.transport.unread = 1000
    door.http.pause_writing()
    door.http.resume_writing()
    assert not door.http.flow.write_paused
    door.look(1000.0)
    assert not door.transport.aborted


async def test_who_does_not_read_the_end_is_ended(door: Door) -> None:
    await door.get(GET)
    door.transport.unread = 1000
    door.transport.close()
    door.look(10.0)
    door.look(14.0)
    assert not door.transport.aborted
    door.look(14.01)
    assert door.transport.aborted


async def test_a_late_client_that_also_does_not_read_is_told_nothing_more(door: Door) -> None:
    door.transport.unread = 1000
    door.http.pause_writing()
    door.look(0.5)
    assert not door.transport.is_closing()
    door.look(1.5)
    assert door.transport.closed


async def test_a_connection_is_ended_at_once(door: Door) -> None:
    door.http.drop()
    assert door.transport.aborted


async def test_uvicorn_s_own_limit_is_none_here(door: Door) -> None:
    assert door.http.limit_concurrency is None


async def test_too_many_is_said_in_json() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await too_many({}, None, send)
    start, end = sent
    headers = dict(start["headers"])
    assert start["status"] == 503
    assert headers[b"content-length"] == b"%d" % len(end["body"])
    assert (headers[b"retry-after"], headers[b"connection"]) == (b"2", b"close")
    assert json.loads(end["body"])["error"]
    assert end["more_body"] is False
