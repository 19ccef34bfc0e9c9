"""`produce`: lines to messages, refusals by line and field, and the real thing over NATS."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import AccessDenied, LogUnavailable, RunIsOver
from schemas.inbox import FieldError, InboxPrompt, InboxReply
from schemas.runs import FinishReason
from slime_events.app.cli.commands.produce import read_lines, send_file
from slime_events.client.inbox import InboxClient, produce
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.loop.prompts.inbox_message import read_message
from slime_events.loop.prompts.outside import BadLine, Line
from storage.jetstream.address import NatsAddress
from storage.jetstream.log import JetStreamLog
from storage.log import MAX_BATCH
from storage.nats.accounts import Access, file_of
from storage.nats.server import NatsServer
from storage.open_log import own_server
from tests import made
from tests.cli.invoke import arguments

SNIPPETS = Path(__file__).parents[2] / "docs" / "snippets"


class FakeInbox:
    """Refuses prompts that say `no`; keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[list[InboxPrompt]] = []

    async def send(self, data: bytes) -> InboxReply:
        prompts = msgspec.json.decode(data, type=list[InboxPrompt])
        self.messages.append(prompts)
        errors = tuple(FieldError(n, "prompt", "too_long") for n, p in enumerate(prompts) if p.prompt == "no")
        if errors:
            return InboxReply(accepted=False, errors=errors)
        return InboxReply(accepted=True, groups=tuple(f"inbox-{p.key}" for p in prompts))


def _lines(text: str, **how: Any) -> list[Line | BadLine]:
    return list(read_lines(io.StringIO(text), "f.jsonl", **how))


def _prompts(lines: Iterable[Line | BadLine]) -> list[InboxPrompt]:
    return [line.item for line in lines if isinstance(line, Line)]


def test_keys_are_the_senders_or_follow_from_the_line() -> None:
    same, again, other = _prompts(_lines('{"prompt": "a"}\n{"prompt": "a"}\n\n{"prompt": "b"}\n'))
    assert same.key == again.key != other.key
    assert len(same.key) == 64
    (named,) = _prompts(_lines('{"id": 7, "messages": [{"role": "user", "content": "a"}]}', key_field="id"))
    assert named.key == "7"
    assert named.prompt == [{"role": "user", "content": "a"}]


def test_a_list_and_an_object_over_lines_are_read_too() -> None:
    assert len(_prompts(_lines('[{"prompt": "a"},\n {"prompt": "b"}]'))) == 2
    assert len(_prompts(_lines('{\n "prompt": "a"\n}\n'))) == 1
    assert _lines("\n\n") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "f.jsonl: not JSON"),
        ("nonsense", "f.jsonl:1: not JSON"),
        ("3", "f.jsonl:1: not a JSON object"),
        ('{"prompt": 3}', "f.jsonl:1: prompt: Expected `str | array`, got `int`"),
        ('{"prompt": "a", "rendered": 4}', "f.jsonl:1: rendered: Expected `bool`, got `int`"),
        ('{"prompt": "a", "extra": 4}', "f.jsonl:1: Object contains unknown field `extra`"),
        ('{"prompt": "a", "messages": []}', "f.jsonl:1: messages: there is also a prompt"),
        ('{"label": "a"}', "f.jsonl:1: Object missing required field `prompt`"),
    ],
)
def test_a_bad_line_is_named_with_field_and_reason(line: str, message: str) -> None:
    (bad,) = _lines(line)
    assert str(bad).startswith(message)


async def test_one_refused_prompt_does_not_hold_up_its_message() -> None:
    inbox = FakeInbox()
    lines = _lines('{"key": "1", "prompt": "a"}\n{"key": "2", "prompt": "no"}\nbad\n{"key": "3", "prompt": "b"}\n')
    results = [result async for result in produce(InboxClient(inbox.send, 400), lines, batch=4)]
    assert [r[1] for r in results if not isinstance(r, BadLine)] == ["inbox-1", "inbox-3"]
    assert "f.jsonl:2: prompt: too_long" in [str(r) for r in results if isinstance(r, BadLine)]


async def test_messages_stay_below_count_and_size() -> None:
    inbox = FakeInbox()
    text = "".join(json.dumps({"key": str(n), "prompt": "x" * 80}) + "\n" for n in range(9))
    lines = _lines(text + json.dumps({"prompt": "y" * 500}))
    results = [result async for result in produce(InboxClient(inbox.send, 400), lines, batch=5)]
    assert max(map(len, inbox.messages)) < 5
    assert sum(map(len, inbox.messages)) == 9
    (bad,) = (result for result in results if isinstance(result, BadLine))
    assert "400 is the most" in str(bad)


async def test_a_message_has_no_more_prompts_than_a_log_stores_at_once() -> None:
    inbox = FakeInbox()
    lines = _lines("".join(f'{{"key": "{n}", "prompt": "a"}}\n' for n in range(2 * MAX_BATCH + 1)))
    results = [result async for result in produce(InboxClient(inbox.send, 1 << 20), lines, batch=5000)]
    assert len(results) == 2 * MAX_BATCH + 1
    assert list(map(len, inbox.messages)) == [MAX_BATCH, MAX_BATCH, 1]


async def _answering(server: NatsAddress, run: str) -> Any:
    """A client that answers like the inbox of a run."""
    inbox, client = FakeInbox(), await nats.connect(**server.options())

    async def receive(message: Any) -> None:
        await message.respond(msgspec.json.encode(await inbox.send(message.data)))

    await client.subscribe(f"slime.{run}.inbox.prompts", cb=receive)
    await client.flush()
    return client


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with await own_server(tmp_path / "r", "r") as server:
        yield server


async def test_over_nats_with_the_command(
    server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"key": "1", "prompt": "a"}\n{"key": "2", "prompt": "no"}\n')
    words = arguments("produce", "r", str(file), "--nats-creds", str(file_of(server.folder, Access.PRODUCER)))
    waiting = asyncio.create_task(_run(words, file))
    while "takes no prompts yet" not in (printed := capsys.readouterr()).err:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    client = await _answering(server.address(Access.ROLES), "r")
    assert await waiting == 1
    printed = capsys.readouterr()
    assert printed.out == "inbox-1  1\n"
    assert f"{file}:2: prompt: " in printed.err
    await client.close()
    with pytest.raises(LogUnavailable, match="takes no prompts"):
        await _run(argparse.Namespace(**vars(words) | {"wait": 0.0}), file)
    nobody = arguments("produce", "r", str(file), "--nats-url", server.url)
    with pytest.raises(AccessDenied, match="--nats-creds"):
        await _run(nobody, file)


@contextlib.asynccontextmanager
async def _nobody_conducts(runs: Path) -> AsyncIterator[tuple[asyncio.Task[int], Callable[[FinishReason], Any]]]:
    """`produce` to a run that takes no prompts now, and what ends the run. Its server goes away at the end."""
    folder = RunFolder.create(runs, "r")
    folder.settings.write_text('[run]\nrun = "r"\n')
    file = runs / "p.jsonl"
    file.write_text('{"key": "1", "prompt": "a"}\n')
    async with await own_server(folder.path, "r") as server:
        log = await JetStreamLog.open(server.address(Access.ROLES), "r")
        worker = Participant(log, "launcher")
        await worker.append([made.started()])

        async def end(reason: FinishReason) -> None:
            await worker.append_fenced(made.finished(reason, events=2))

        yield asyncio.create_task(_run(arguments("produce", "r", str(file), "--runs-dir", str(runs)), file)), end
        await log.close()


async def test_a_run_that_is_over_is_not_waited_for_while_its_server_stays(tmp_path: Path) -> None:
    async with _nobody_conducts(tmp_path) as (sending, end):
        await end(FinishReason.ALL_STEPS)
        with pytest.raises(RunIsOver):
            await sending


@pytest.mark.parametrize("reason", [FinishReason.ALL_STEPS, FinishReason.INTERRUPTED])
async def test_a_run_that_ends_meanwhile_is_not_waited_for(
    reason: FinishReason, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with _nobody_conducts(tmp_path) as (sending, end):
        while "takes no prompts yet" not in capsys.readouterr().err:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await end(reason)
    if reason is FinishReason.ALL_STEPS:
        with pytest.raises(RunIsOver):
            await sending
    else:
        assert await sending == 0
        assert "wait in its log" in capsys.readouterr().err


@pytest.mark.parametrize("snippet", ["produce.py", "produce.js"])
async def test_the_producers_of_the_docs(server: NatsServer, snippet: str) -> None:
    """Run them with one file of the run's folder. They wait for a run that takes no prompts yet."""
    program = sys.executable if snippet.endswith(".py") else _node()
    producer = await asyncio.create_subprocess_exec(
        program, str(SNIPPETS / snippet), str(file_of(server.folder, Access.PRODUCER)), stdout=asyncio.subprocess.PIPE
    )
    client = await _answering(server.address(Access.ROLES), "r")
    out, _ = await asyncio.wait_for(producer.communicate(), 60)
    assert producer.returncode == 0
    assert "inbox-quiz-4" in out.decode()
    await client.close()


def _node() -> str:
    node, module = shutil.which("node"), "@nats-io/transport-node"
    if not node or subprocess.run([node, "-e", f"require({module!r})"], capture_output=True, check=False).returncode:
        pytest.skip(f"no node with {module}: npm install it, and set NODE_PATH")
    return node


async def _run(words: argparse.Namespace, file: Path) -> int:
    with file.open() as opened:
        return await send_file(words, opened)


ODD: list[tuple[bytes, list[str], int]] = [
    (b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n{"prompt": "b"}\n', ["f:2: prompt: cannot be read: not UTF-8"], 2),
    (b'\xef\xbb\xbf{"prompt": "a"}\r\n\xef\xbb\xbf{"prompt": "b"}', [], 2),
    (b'\xef\xbb\xbf[{"prompt": "a"},\n {"prompt": "b"}]', [], 2),
    (b'\xef\xbb\xbf{\n "prompt": "a"\n}\n', [], 1),
    (b'{"prompt": "a"}\r{"prompt": "b"}\r', [], 2),
    (b'[{"prompt": "caf\xe9"}, {"prompt": "b"}]', ["f:item 1: prompt: cannot be read: not UTF-8"], 1),
    (b'{"prompt": "a", "label": 1e999}\n', ["f:1: label: cannot be read: Number out of range"], 0),
    (b'{"prompt": "a", "metadata": ' + b"[" * 1500 + b"]" * 1500 + b"}\n", ["f:1: metadata: is nested too deep"], 0),
    (b"[" * 1500 + b"]" * 1500, ["f: not JSON: nested too deeply"], 0),
    (b'{"prompt": "a \\ud83d"}\n', ["f:1: not JSON: 'prompt' has half a character"], 0),
    (b'{"prompt": "a", "label": NaN}\n', ["f:1: not JSON: NaN is no JSON value"], 0),
    ('{"prompt": "a"}'.encode("utf-16"), ["f: holds UTF-16"], 0),
    (b"\x1f\x8bxxx", ["f: holds gzip"], 0),
    (b'{"prompt": "a", "tools": [{"n": 1%s}]}\n' % (b"0" * 30), ["f:1: tools[0].n: is an integer of some 31"], 0),
    (b'{"prompt": "a"}\n{"prompt": "half', ["f:2: not JSON"], 1),
]


@pytest.mark.parametrize(("content", "refused", "taken"), ODD)
def test_files_as_people_have_them(content: bytes, refused: list[str], taken: int) -> None:
    lines = list(read_lines(io.BytesIO(content), "f"))
    bad = [str(line) for line in lines if isinstance(line, BadLine)]
    assert len(_prompts(lines)) == taken
    assert len(bad) == len(refused)
    assert all(line.startswith(reason) for line, reason in zip(bad, refused, strict=True)), bad


def test_a_big_integer_is_its_decimal_text() -> None:
    (prompt,) = _prompts(read_lines(io.BytesIO(b'{"prompt": "a", "label": 1%s}' % (b"0" * 30)), "f"))
    assert prompt.label == "1" + "0" * 30
    assert msgspec.json.encode(prompt)


def test_a_line_without_end_is_refused_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from slime_events.app.cli.commands import produce as command

    monkeypatch.setattr(command, "LONGEST_LINE", 1000)
    content = b'{"prompt": "a"}\n{"prompt": "%s"}\n{"prompt": "b"}\n' % (b"x" * 5000)
    lines = list(read_lines(io.BytesIO(content), "f"))
    assert [str(line)[:20] for line in lines if isinstance(line, BadLine)] == ["f:2: the line has mo"]
    assert [prompt.prompt for prompt in _prompts(lines)] == ["a", "b"]


@given(st.binary(max_size=200) | st.lists(st.sampled_from([piece for piece, _, _ in ODD])).map(b"".join))
def test_any_bytes_are_prompts_or_bad_lines(content: bytes) -> None:
    lines = list(read_lines(io.BytesIO(content), "f"))
    assert all(isinstance(line, Line | BadLine) for line in lines)
    items, errors = read_message(content, InboxPrompt)
    assert all(isinstance(item, InboxPrompt) for _, item in items)
    assert all(error.message for error in errors)


async def test_reasons_are_counted_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from slime_events.app.cli.commands import produce as command

    @contextlib.asynccontextmanager
    async def door(_: Any) -> AsyncIterator[InboxClient]:
        yield InboxClient(FakeInbox().send, 1 << 20)

    monkeypatch.setattr(command, "_inbox", door)
    content = b'{"prompt": "a"}\n' + b'{"prompt": "caf\xe9"}\n' * 4 + b'{"prompt": "no"}\n\x1b[31m\n'
    assert await send_file(arguments("produce", "r", "f"), io.BytesIO(content)) == 1
    output = capsys.readouterr().err
    assert "\x1b" not in output
    *_, reasons, last = output.splitlines()
    assert reasons.startswith("refused: 4 x prompt: cannot be read: not UTF-8")
    assert "1 x prompt: too_long" in reasons
    assert last == "1 accepted, 6 refused"
