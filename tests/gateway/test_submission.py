"""Bodies of many items: how they are cut into lines, what is named in the answer, and where it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import LogUnavailable
from schemas.inbox import REWARDS, InboxReply
from schemas.submission import Submission
from serve_apps.http.gateway import submission
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.gateway.submission import submit
from slime_events.client.inbox import InboxClient

NDJSON, JSON = "application/x-ndjson", "application/json"
GOOD, BAD = b'{"prompt": "a"}', b"{}"


class Inbox:
    """It takes everything, up to `most` messages."""

    def __init__(self, most: int = 10**9) -> None:
        self.messages: list[list[Any]] = []
        self._most = most

    async def send(self, data: bytes) -> InboxReply:
        if len(self.messages) == self._most:
            raise LogUnavailable("gone")
        self.messages.append(json.loads(data))
        first = sum(map(len, self.messages[:-1]))
        return InboxReply(True, tuple(f"g{first + at}" for at in range(len(self.messages[-1]))))

    @property
    def items(self) -> list[Any]:
        return [item for message in self.messages for item in message]


async def sent(inbox: Inbox, *chunks: bytes, media: str = NDJSON, most: int = 10**6, **more: Any) -> Submission:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    client = InboxClient(inbox.send, 1 << 20, again_s=())
    return await submit(body(), client, media=media, key=more.pop("key", None), most=most, **more)


async def refused(*chunks: bytes, **more: Any) -> Refused:
    with pytest.raises(Refused) as error:
        await sent(Inbox(), *chunks, **more)
    return error.value


@pytest.mark.parametrize("many", [False, True])
async def test_one_or_many_are_taken_in_order(many: bool) -> None:
    items = [{"key": "a", "prompt": "1"}, {"key": "b", "prompt": "2"}]
    inbox = Inbox()
    taken = await sent(inbox, json.dumps(items if many else items[0]).encode(), media=JSON)
    assert [item["key"] for item in inbox.items] == ["a", "b"][: 1 + many]
    assert [(group.key, group.group) for group in taken.groups] == [("a", "g0"), ("b", "g1")][: 1 + many]
    assert (taken.accepted, taken.refused, taken.errors, taken.more, taken.unread) == (1 + many, 0, [], 0, 0)


async def test_a_key_is_of_a_single_item_of_json() -> None:
    inbox = Inbox()
    await sent(inbox, GOOD, media=JSON, key="mine")
    await sent(inbox, GOOD, key="mine")
    assert [item["key"] == "mine" for item in inbox.items] == [True, False]
    assert (await refused(b"[" + GOOD + b"]", media=JSON, key="mine")).status == 400


async def test_what_is_no_json_is_refused() -> None:
    inbox = Inbox()
    assert (await refused(b"[1", media=JSON)).status == 400
    named = await sent(Inbox(), b"[%s, %s, %s]" % (BAD, GOOD, BAD), media=JSON)
    assert [error.line for error in named.errors] == [1, 3]
    for data in (b"", b"{", b"\xff"):
        taken = await sent(inbox, data, media=JSON)
        assert (taken.accepted, taken.refused) == (0, 1)
    assert inbox.items == []


async def test_items_are_of_their_kind() -> None:
    inbox = Inbox()
    taken = await sent(inbox, b'{"sample": "s", "reward": 1}\n' + GOOD, kind=REWARDS)
    assert [(error.line, bool(error.field)) for error in taken.errors] == [(2, False)] or taken.refused == 1
    assert [item["sample"] for item in inbox.items] == ["s"]


@settings(max_examples=40)
@given(st.lists(st.sampled_from([GOOD, BAD, b"", b"  "]), max_size=12), st.integers(1, 30), st.booleans())
async def test_lines_are_numbered_however_they_come(lines: list[bytes], size: int, ended: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    taken = await sent(Inbox(), *(data[at : at + size] for at in range(0, len(data), size)))
    assert [error.line for error in taken.errors] == [at for at, line in enumerate(lines, 1) if line == BAD]
    assert taken.accepted == lines.count(GOOD)


async def test_lines_are_sent_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_BATCH", 2)
    inbox = Inbox(most=1)
    with pytest.raises(LogUnavailable):
        await sent(inbox, (GOOD + b"\n") * 5)
    assert len(inbox.items) == 2
    whole = Inbox()
    assert (await sent(whole, (GOOD + b"\n") * 5)).accepted == 5
    assert [len(message) for message in whole.messages] == [2, 2, 1]


async def test_a_request_has_so_many_bytes() -> None:
    data = GOOD + b"\n" + GOOD
    for media in (NDJSON, JSON):
        assert (await refused(data, media=media, most=len(data) - 1)).status == 413
        assert (await refused(data[:20], data[20:], media=media, most=len(data) - 1)).status == 413
    assert (await sent(Inbox(), data + b"\n", most=len(data) + 1)).accepted == 2
    assert (await sent(Inbox(), GOOD, media=JSON, most=len(GOOD))).accepted == 1


async def test_a_value_or_a_line_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "JSON_BYTES", len(GOOD))
    assert (await sent(Inbox(), GOOD, media=JSON)).accepted == 1
    assert (await refused(GOOD + b" ", media=JSON)).status == 413
    assert (await sent(Inbox(), GOOD[:5], GOOD[5:], b"\n" + GOOD)).accepted == 2
    for chunks in ((GOOD + b" ",), (GOOD, b" "), (b"\n" * 3, GOOD[:5], GOOD[5:] + b" ")):
        assert (await refused(*chunks)).status == 413
    assert (await sent(Inbox(), GOOD[:3], GOOD[3:] + b"\n" + GOOD[:3], GOOD[3:])).accepted == 2


async def test_a_request_has_so_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MOST_LINES", 3)
    for whole in (b"\n\n" + GOOD, b"\n\n" + GOOD + b"\n"):
        assert (await sent(Inbox(), whole, b"")).accepted == 1
    for more in (b"\n\n\n" + GOOD, b"\n\n" + GOOD + b"\n\n"):
        assert (await refused(more)).status == 413
    items = [b"[" + b",".join([GOOD] * count) + b"]" for count in (3, 4)]
    assert (await sent(Inbox(), items[0], media=JSON)).accepted == 3
    assert (await refused(items[1], media=JSON)).status == 413


async def test_an_answer_names_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "LINES", 3)
    taken = await sent(Inbox(), b"\n".join([GOOD, BAD, GOOD, BAD, GOOD]))
    assert (taken.accepted, taken.refused, taken.more) == (3, 2, 2)
    assert len(taken.groups) + len(taken.errors) == 3


async def test_after_so_many_refused_no_more_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MOST_REFUSED", 3)
    monkeypatch.setattr(submission, "MAX_BATCH", 2)
    few, many = ([BAD] * count + [GOOD] * 4 for count in (2, 3))
    taken = await sent(Inbox(), b"\n".join(few))
    assert (taken.accepted, taken.refused, taken.unread) == (4, 2, 0)
    taken = await sent(Inbox(), b"\n".join(many))
    assert (taken.accepted, taken.refused, taken.unread) == (1, 3, 5)
