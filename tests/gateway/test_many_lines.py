"""Many lines, or items of a list: read off the loop, bounded, and refused early where most of them are no prompts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.inbox import InboxReply
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.gateway.submission import JSON_BYTES, submit
from slime_events.client.inbox import InboxClient
from storage.log import MAX_BATCH
from tests.gateway.test_large_requests import no_standstill

MB = 1024 * 1024
NDJSON, JSON = "application/x-ndjson", "application/json"
MOST_REFUSED = 20_000
"""Lines of a request, after which no more are looked at."""
GENEROUS_S = 30.0
"""For what took minutes."""


async def pieces(data: bytes, size: int = 65536) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def inbox_of(sent: list[bytes]) -> InboxClient:
    async def send(data: bytes) -> InboxReply:
        sent.append(data)
        return InboxReply(True, tuple("g" for _ in range(data.count(b'"prompt"'))))

    return InboxClient(send, MB, again_s=())


async def sent_in(data: bytes, media: str, *, size: int = 65536, most: int = 64 * MB) -> Any:
    return await submit(pieces(data, size), inbox_of([]), media=media, key=None, most=most)


@pytest.mark.parametrize("line", [b"{}", b"[]", b"1", b'{"a":1}', b'{"prompt":1}', b"\xff", b'"\\ud800"'], ids=repr)
async def test_lines_that_are_no_prompts_are_refused_early(line: bytes) -> None:
    many = 40 * MB // (len(line) + 1)
    begin = time.monotonic()
    async with no_standstill():
        taken = await sent_in((line + b"\n") * many, NDJSON)
    assert time.monotonic() - begin < GENEROUS_S
    assert (taken.accepted, taken.refused) == (0, MOST_REFUSED)
    assert taken.unread == MOST_REFUSED + 1
    assert len(taken.errors) + taken.more == MOST_REFUSED
    assert [error.line for error in taken.errors[:2]] == [1, 2]


async def test_a_list_of_items_that_are_no_prompts_is_refused_early() -> None:
    begin = time.monotonic()
    async with no_standstill():
        taken = await sent_in(b"[" + b"{},\n" * 600_000 + b"{}]", JSON)
    assert time.monotonic() - begin < GENEROUS_S
    assert (taken.accepted, taken.refused, taken.unread) == (0, MOST_REFUSED, MOST_REFUSED + 1)


@pytest.mark.parametrize("data", [b"\n" * (1_000_001), b" \n" * (1_000_001)], ids=["empty", "blank"])
async def test_lines_are_counted(data: bytes) -> None:
    with pytest.raises(Refused, match=r"limited to .* lines") as refused:
        await sent_in(data, NDJSON)
    assert refused.value.status == 413


async def test_a_list_has_so_many_items() -> None:
    with pytest.raises(Refused, match=r"limited to .* items"):
        await sent_in(b"[" + b"1," * 1_000_000 + b"1]", JSON)


async def test_a_long_line_is_read_in_proportion_to_its_length() -> None:
    begin = time.monotonic()
    with pytest.raises(Refused, match="line 1 is longer than"):
        await sent_in(b"x" * (JSON_BYTES + 1), NDJSON, size=512)
    assert time.monotonic() - begin < GENEROUS_S


async def test_good_lines_among_bad_ones_are_taken() -> None:
    good = b'{"prompt": "a"}\n'
    taken = await sent_in((b"{}\n" * 10 + good) * 1500, NDJSON)
    assert (taken.accepted, taken.refused, taken.unread) == (1500, 15_000, 0)
    mixed = await sent_in(good * MAX_BATCH + b"{}\n" * (2 * MOST_REFUSED) + good, NDJSON)
    assert (mixed.accepted, mixed.refused) == (MAX_BATCH, MOST_REFUSED)
    assert mixed.unread == MAX_BATCH + MOST_REFUSED + 1
