"""`slime-events produce`: prompts from a file, or standard input, into the inbox of a run that is on.

Each prompt is sent under a key; the same key is the same prompt for ever, so a file can be sent again after any doubt.
"""

import argparse
import asyncio
import hashlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec
import nats
import nats.errors
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoReply

from schemas.errors import DeadlineExceeded, LogUnavailable, RunNotFound
from schemas.inbox import InboxPrompt, InboxReply
from schemas.subjects import inbox
from slime_events.app.cli.files import nats_place
from slime_events.core.run.run_folder import find_run
from storage.jetstream.address import NatsAddress, read_credentials, refusal_of
from storage.log import MAX_BATCH
from storage.nats.accounts import Access
from storage.open_log import live_address

AGAIN_S = (0.5, 2.0, 5.0)
"""Seconds to wait before a message that could not be taken just now is sent again."""
LOOK_S = 0.5
"""Seconds between two looks whether a run takes prompts now."""
ROOM = 4096
"""Bytes of a message kept for its frame."""


@dataclass(frozen=True, slots=True)
class Line:
    """A prompt and where it stood, `file:line`."""

    place: str
    prompt: InboxPrompt


@dataclass(frozen=True, slots=True)
class BadLine:
    """A prompt that cannot be sent: where, which field, why."""

    place: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.field + ': ' if self.field else ''}{self.message}"


def read_lines(file: TextIO, name: str, *, key_field: str | None = None) -> Iterator[Line | BadLine]:
    """The prompts of a file, one by one; a list, or one object over several lines, is read whole.

    A prompt's key is its field `key_field` (`key` where none is named), or the sha256 of its line.
    """
    lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
    head = list(itertools.islice(lines, 1))
    first = "".join(line for _, line in head)
    if first.lstrip()[:1] != "[" and first.strip() != "{":
        for number, line in itertools.chain(head, lines):
            yield _line(line.strip().encode(), f"{name}:{number}", key_field)
        return
    try:
        items = msgspec.json.decode(first + file.read(), type=list[msgspec.Raw] | dict[str, Any])
    except msgspec.DecodeError as error:
        yield BadLine(name, "", f"not JSON: {error}")
        return
    if isinstance(items, dict):
        yield _line(msgspec.json.encode(items), name, key_field)
        return
    for number, item in enumerate(items, 1):
        yield _line(bytes(item), f"{name}:item {number}", key_field)


def _line(data: bytes, place: str, key_field: str | None) -> Line | BadLine:
    try:
        fields = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        return BadLine(place, "", f"not JSON: {error}")
    if not isinstance(fields, dict):
        return BadLine(place, "", "not a JSON object: write {...} with a prompt")
    if key_field and key_field not in fields:
        return BadLine(place, key_field, "missing, and --key-field says that it names the prompt")
    key = fields.pop(key_field or "key", None)
    fields["key"] = hashlib.sha256(data).hexdigest() if key is None else str(key)
    if "messages" in fields:
        if "prompt" in fields:
            return BadLine(place, "messages", "stands beside prompt: give one of them")
        fields["prompt"] = fields.pop("messages")
    try:
        return Line(place, msgspec.convert(fields, InboxPrompt))
    except msgspec.ValidationError as error:
        message, _, field = str(error).partition(" - at `$")
        return BadLine(place, field.removeprefix(".").removesuffix("`"), message)


@dataclass(frozen=True, slots=True)
class Inbox:
    """A run's inbox. max_bytes: of a message."""

    send: Callable[[bytes], Awaitable[InboxReply]]
    max_bytes: int


def nats_inbox(client: Any, run: str, reply_s: float, wait_s: float) -> Inbox:
    """The run's inbox over NATS. Sending waits `wait_s` for a run that takes no prompts yet, or whose conductor is
    replaced just now; then it raises LogUnavailable, or DeadlineExceeded without a reply in time.
    """

    async def ask(data: bytes) -> bytes:
        try:
            return bytes((await client.request(inbox(run), data, timeout=reply_s)).data)
        except NoRespondersError as error:
            raise LogUnavailable(
                f"run {run} takes no prompts: it has not begun or is over (nobody listens on {inbox(run)})"
            ) from error
        except NoReply as error:
            raise DeadlineExceeded(
                f"run {run} did not answer within {reply_s:.0f} s; sending the same file again is safe"
            ) from error
        except nats.errors.Error as error:
            raise LogUnavailable(f"the NATS server of run {run} has gone ({error})") from error

    async def send(data: bytes) -> InboxReply:
        end, told = time.monotonic() + wait_s, False
        while True:
            try:
                return msgspec.json.decode(await ask(data), type=InboxReply)
            except (LogUnavailable, DeadlineExceeded):
                if client.is_closed or time.monotonic() > end:
                    raise
            if not told:
                sys.stderr.write(f"run {run} takes no prompts yet: waiting, {wait_s:.0f} s at most\n")
                told = True
            await asyncio.sleep(LOOK_S)

    return Inbox(send, int(client.max_payload) - ROOM)


async def produce(
    inbox: Inbox, lines: Iterable[Line | BadLine], batch: int
) -> AsyncIterator[tuple[Line, str] | BadLine]:
    """Send prompts, `batch` in a message; what became of each line, message by message: its group, or why not.

    The run takes a message as a whole: where it refuses some prompts, the others are sent again. More than its log
    stores at once are several messages.
    """
    for pack in _packs(lines, min(batch, MAX_BATCH), inbox.max_bytes):
        good = []
        for line in pack:
            if isinstance(line, BadLine):
                yield line
            else:
                good.append(line)
        while good:
            reply = await _send(inbox, good)
            if reply.accepted:
                for taken in zip(good, reply.groups, strict=True):
                    yield taken
                break
            refused = {error.index: error for error in reply.errors}
            for index, error in sorted(refused.items()):
                yield BadLine(good[index].place, error.field, error.message)
            good = [line for index, line in enumerate(good) if index not in refused]


async def _send(inbox: Inbox, lines: Sequence[Line]) -> InboxReply:
    """The reply to a message. One that could not be taken just now (no field is wrong) is sent again a few times."""
    data = msgspec.json.encode([line.prompt for line in lines])
    for pause in (*AGAIN_S, None):
        reply = await inbox.send(data)
        if reply.accepted or all(error.field for error in reply.errors):
            return reply
        if pause is not None:
            await asyncio.sleep(pause)
    raise LogUnavailable(f"the run takes no prompts now: {reply.errors[0].message}")


def _packs(lines: Iterable[Line | BadLine], count: int, max_bytes: int) -> Iterator[list[Line | BadLine]]:
    """Lines in messages of `count` prompts and `max_bytes` at most; a prompt that is longer is a bad line."""
    pack: list[Line | BadLine] = []
    total = 0
    for line in lines:
        size = len(msgspec.json.encode(line.prompt)) + 1 if isinstance(line, Line) else 0
        if size > max_bytes:
            line = BadLine(line.place, "prompt", f"it has {size} bytes, {max_bytes} is the most")
            size = 0
        if pack and (len(pack) >= count or total + size > max_bytes):
            yield pack
            pack, total = [], 0
        pack.append(line)
        total += size
    if pack:
        yield pack


async def run(arguments: argparse.Namespace) -> int:
    """Send a file. 1 where any line was refused."""
    if arguments.file == "-":
        return await send_file(arguments, sys.stdin)
    try:
        file = open(arguments.file, encoding="utf-8")  # noqa: SIM115, ASYNC230  the handler is for opening alone
    except OSError as error:
        raise RunNotFound(f"{arguments.file} cannot be read: {error.strerror}") from error
    with file:
        return await send_file(arguments, file)


def _server(arguments: argparse.Namespace) -> tuple[NatsAddress, str]:
    """The server of the run, and the run's name. With a server, or credentials that name one, no run folder is needed
    here. Raises LogUnavailable where the run is not on.
    """
    named = read_credentials(arguments.nats_creds).url if arguments.nats_creds else None
    if (place := nats_place(arguments, named)) is not None:
        return place.address(), arguments.run
    folder = find_run(arguments.run, arguments.runs_dir)
    server = live_address(folder.path, Access.PRODUCER)
    if server is None:
        raise LogUnavailable(f"run {folder.run} is not on: prompts are taken while it runs")
    return server, folder.log_name()


async def send_file(arguments: argparse.Namespace, file: TextIO) -> int:
    """Print the group of each line that was taken, and on standard error why another was not."""
    server, run = _server(arguments)
    try:
        client = await nats.connect(
            **server.options(), connect_timeout=5, allow_reconnect=False, name="slime-events-produce"
        )
    except (nats.errors.Error, OSError, TimeoutError) as error:
        refusal = refusal_of(error, server.url)
        raise refusal or LogUnavailable(f"no NATS server answers at {server.url}: is the run on?") from error
    taken = refused = 0
    name = "standard input" if arguments.file == "-" else arguments.file
    lines = read_lines(file, name, key_field=arguments.key_field)
    try:
        async for result in produce(nats_inbox(client, run, arguments.timeout, arguments.wait), lines, arguments.batch):
            if isinstance(result, BadLine):
                refused += 1
                sys.stderr.write(f"{result}\n")
            else:
                taken += 1
                line, group = result
                print(f"{group}  {line.prompt.key}")
    finally:
        await client.close()
    sys.stderr.write(f"{taken} accepted, {refused} refused\n")
    return int(refused > 0)
