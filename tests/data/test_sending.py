"""Prompts on their way to a run: what a line comes to, how lines are packed, and what is sent again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import nats.errors
import pytest

from schemas.errors import ConfigError, DeadlineExceeded, InboxFull, LogUnavailable
from schemas.inbox import REWARDS, TRAJECTORIES, FieldError, InboxPrompt, InboxReply
from schemas.outside import OutsideReward
from schemas.outside_json import read_json
from slime_events.client import inbox
from slime_events.client.inbox import InboxClient, NobodyListens, ask_inbox, patient, produce
from slime_events.loop.prompts import inbox_message
from slime_events.loop.prompts.inbox_message import read_message
from slime_events.loop.prompts.outside import BadLine, Line, read_line
from storage.log import MAX_BATCH

LINE = b'{"prompt": "p", "label": 1}'
SHA = hashlib.sha256(LINE).hexdigest()


def good(data: bytes, **more: Any) -> Any:
    line = read_line(data, "f:1", **more)
    assert isinstance(line, Line), line
    assert line.place == "f:1"
    assert line.key == line.item.key
    return line.item


def test_a_line_is_named_by_its_key_or_by_itself() -> None:
    assert good(LINE) == InboxPrompt(key=SHA, prompt="p", label=1)
    assert good(LINE, default="d").key == "d"
    assert good(b'{"key": "k", "prompt": "p"}', default="d").key == "k"
    assert good(b'{"key": null, "prompt": "p"}', default="d").key == "d"
    assert good(b'{"id": 7, "prompt": "p"}', key_field="id") == InboxPrompt(key="7", prompt="p")
    assert good(b"\xef\xbb\xbf" + LINE).key == SHA
    chat = [{"role": "user", "content": "p"}]
    assert good(json.dumps({"messages": chat}).encode(), default="d") == InboxPrompt(key="d", prompt=chat)


def test_a_reward_needs_no_key() -> None:
    item = good(b'{"sample": "s", "reward": 1}', kind=REWARDS)
    assert isinstance(item, OutsideReward)
    assert (item.sample, item.reward) == ("s", 1)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", ""),
        (b"{", ""),
        (b"[1]", ""),
        (b'"a"', ""),
        (b'{"prompt": NaN}', ""),
        (b'{"prompt": "\xff"}', "prompt"),
        (b'{"prompt": "p", "metadata": 1e999}', "metadata"),
        (b'{"prompt": "p", "metadata": {"n": 1%s}}' % (b"0" * 30), "metadata.n"),
        (b'{"prompt": "p", "messages": []}', "messages"),
        (b'{"prompt": 1}', "prompt"),
        (b'{"prompt": [1]}', "prompt[0]"),
        (b'{"prompt": "p", "colour": 1}', ""),
    ],
)
def test_a_bad_line_names_its_field(data: bytes, field: str) -> None:
    bad = read_line(data, "f:1")
    assert isinstance(bad, BadLine)
    assert (bad.place, bad.field) == ("f:1", field)
    assert bad.message in str(bad)
    assert str(bad).startswith(f"f:1: {field}")


def test_the_field_that_names_prompts_has_to_be_there() -> None:
    bad = read_line(LINE, "f:1", key_field="id")
    assert isinstance(bad, BadLine)
    assert bad.field == "id"
    assert read_line(b'{"key": "k"}', "f:1", kind=TRAJECTORIES).place == "f:1"


def lines(*keys: str, text: str = "p") -> list[Line | BadLine]:
    return [Line(f"f:{number}", InboxPrompt(key=key, prompt=text)) for number, key in enumerate(keys)]


class Run:
    """Takes what is sent, but what `replies` say first."""

    def __init__(self, *replies: InboxReply) -> None:
        self.replies, self.sent = list(replies), list[list[str]]()

    async def send(self, data: bytes) -> InboxReply:
        keys = [item["key"] for item in json.loads(data)]
        self.sent.append(keys)
        if self.replies:
            return self.replies.pop(0)
        return InboxReply(accepted=True, groups=tuple(f"g-{key}" for key in keys))


async def sent(run: Run, lines_: Sequence[Line | BadLine], batch: int = 100, size: int = 10_000) -> list[Any]:
    client = InboxClient(run.send, size, again_s=(0.0, 0.0))
    return [pair async for pair in produce(client, lines_, batch)]


async def test_each_line_is_told_its_group() -> None:
    run, bad = Run(), BadLine("f:9", "prompt", "no")
    results = await sent(run, [*lines("a", "b"), bad, *lines("c")])
    assert [result if result is bad else (result[0].key, result[1]) for result in results] == [
        bad,
        ("a", "g-a"),
        ("b", "g-b"),
        ("c", "g-c"),
    ]
    assert run.sent == [["a", "b", "c"]]
    assert await sent(Run(), []) == []


async def test_lines_go_in_messages_of_so_many() -> None:
    run = Run()
    await sent(run, lines(*"abcde"), batch=2)
    assert run.sent == [["a", "b"], ["c", "d"], ["e"]]
    many = Run()
    await sent(many, lines(*map(str, range(MAX_BATCH + 1))), batch=10**6, size=10**9)
    assert [len(message) for message in many.sent] == [MAX_BATCH, 1]


async def test_a_message_has_no_more_bytes_than_it_may() -> None:
    size = len(msgspec.json.encode(InboxPrompt(key="a", prompt="p"))) + 1
    for most, packs in ((3 * size, [3, 1]), (3 * size - 1, [2, 2]), (size, [1] * 4)):
        run = Run()
        await sent(run, lines(*"abcd"), size=most)
        assert [len(message) for message in run.sent] == packs
    run = Run()
    results = await sent(run, [*lines("a"), *lines("b", text="x" * 100), *lines("c")], size=3 * size)
    assert run.sent == [["a", "c"]]
    assert [(result.place, result.field) for result in results if isinstance(result, BadLine)] == [("f:0", "prompt")]
    (small,) = await sent(run, lines("a"), size=size - 1)
    assert isinstance(small, BadLine)


def refusing(*errors: tuple[int, str]) -> InboxReply:
    return InboxReply(accepted=False, errors=tuple(FieldError(index, field, "no") for index, field in errors))


def test_a_valid_message_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = list[Any]()

    def counted(data: bytes | msgspec.Raw, kind: type[Any]) -> Any:
        kinds.append(kind)
        return read_json(data, kind)

    monkeypatch.setattr(inbox_message, "read_json", counted)
    items, errors = read_message(b'[{"key": "a", "prompt": "p"}, {"key": "b", "prompt": "p"}]', InboxPrompt)
    assert ([(index, item.key) for index, item in items], errors) == ([(0, "a"), (1, "b")], [])
    assert len(kinds) == 1
    items, errors = read_message(b'[{"key": "a", "prompt": "p"}, {"key": "b"}]', InboxPrompt)
    assert [(index, item.key) for index, item in items] == [(0, "a")]
    assert [(error.index, error.field) for error in errors] == [(1, "prompt")]


async def test_what_is_refused_is_told_and_the_others_are_sent_again() -> None:
    run = Run(refusing((2, "label"), (0, "prompt")))
    results = await sent(run, lines(*"abc"))
    assert [(result.place, result.field) for result in results[:2]] == [("f:0", "prompt"), ("f:2", "label")]
    assert [(line.key, group) for line, group in results[2:]] == [("b", "g-b")]
    assert run.sent == [["a", "b", "c"], ["b"]]
    everything = Run(refusing((0, "prompt")))
    assert len(await sent(everything, lines("a"))) == len(everything.sent) == 1


async def test_a_message_of_which_a_part_is_too_early_is_sent_again() -> None:
    run = Run(refusing((0, "prompt"), (1, "")))
    assert len(await sent(run, lines("a", "b"))) == 2
    assert run.sent == [["a", "b"]] * 2


async def test_a_reply_that_names_fewer_groups_is_an_error() -> None:
    """No line is taken for one that the run has."""
    with pytest.raises(ValueError, match="zip"):
        await sent(Run(InboxReply(accepted=True, groups=("g",))), lines(*"ab"))


@pytest.mark.parametrize(("full", "error"), [(True, InboxFull), (False, LogUnavailable)])
async def test_what_cannot_be_taken_now_is_sent_again_a_few_times(full: bool, error: type[Exception]) -> None:
    busy = msgspec.structs.replace(refusing((0, "")), full=full)
    run = Run(busy, busy)
    assert len(await sent(run, lines("a"))) == 1
    assert len(run.sent) == 3
    never = Run(busy, busy, busy)
    with pytest.raises(error):
        await sent(never, lines("a"))
    assert len(never.sent) == 3


class Client:
    """Play a NATS client that records requests and answers with a set outcome."""

    def __init__(self, outcome: Any) -> None:
        self.outcome, self.calls = outcome, list[Any]()

    async def request(self, subject: str, data: bytes, timeout: float, headers: Any) -> Any:
        self.calls.append((subject, data, timeout, headers))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self

    @property
    def data(self) -> bytes:
        return bytes(self.outcome)


async def test_the_reply_of_a_run() -> None:
    client = Client(b'{"accepted": true, "groups": ["g"]}')
    assert await ask_inbox(client, "r", "s", b"d", 3.0, {"h": "v"}) == InboxReply(accepted=True, groups=("g",))
    assert client.calls == [("s", b"d", 3.0, {"h": "v"})]


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (nats.errors.NoRespondersError(), NobodyListens),
        (nats.errors.TimeoutError(), DeadlineExceeded),
        (nats.errors.ConnectionClosedError(), LogUnavailable),
    ],
)
async def test_a_run_that_does_not_reply(raised: Exception, error: type[Exception]) -> None:
    with pytest.raises(error) as refusal:
        await ask_inbox(Client(raised), "r", "s", b"d", 3.0)
    assert type(refusal.value) is error
    assert refusal.value.__cause__ is raised


def asking(outcomes: list[Any]) -> Callable[[bytes], Awaitable[InboxReply]]:
    async def ask(data: bytes) -> InboxReply:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return InboxReply(accepted=True, groups=(data.decode(),))

    return ask


def saying(notes: list[str], error: Exception | None = None) -> Callable[[], Awaitable[None]]:
    async def say() -> None:
        notes.append("waits")
        if error is not None:
            raise error

    return say


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(inbox, "LOOK_S", 0.0)
    return []


async def test_a_run_that_is_not_on_yet_is_waited_for(notes: list[str]) -> None:
    away = [LogUnavailable("no"), DeadlineExceeded("no"), NobodyListens("no"), None]
    send = patient(asking(away), 60.0, lambda: False, saying(notes))
    assert (await send(b"g")).groups == ("g",)
    assert notes == ["waits"]
    assert away == []


@pytest.mark.parametrize(("wait_s", "is_over"), [(60.0, True), (-1.0, False)])
async def test_no_longer_than_it_may_and_not_for_a_run_that_is_over(
    notes: list[str], wait_s: float, is_over: bool
) -> None:
    send = patient(asking([LogUnavailable("no"), None]), wait_s, lambda: is_over, saying(notes))
    with pytest.raises(LogUnavailable):
        await send(b"g")
    assert notes == []


async def test_nothing_is_waited_for_in_vain(notes: list[str]) -> None:
    send = patient(asking([LogUnavailable("no"), None]), 60.0, lambda: False, saying(notes, ConfigError("in vain")))
    with pytest.raises(ConfigError):
        await send(b"g")
    assert notes == ["waits"]


async def test_other_errors_are_not_waited_for(notes: list[str]) -> None:
    send = patient(asking([ConfigError("no"), None]), 60.0, lambda: False, saying(notes))
    with pytest.raises(ConfigError):
        await send(b"g")
    assert notes == []
