"""`slime-events produce`: send prompts from a file or standard input to a run's inbox, or to its log if it is not
running.

Each prompt is sent with a key. The same key is always the same prompt, so it is safe to send a file again.
"""

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any

import msgspec
import nats
import nats.errors
from nats.aio.client import Client as NatsClient

from schemas.errors import LogUnavailable, RunNotFound
from schemas.inbox import InboxReply
from schemas.outside_json import read_json
from schemas.subjects import about, inbox
from schemas.text import message_text, terminal_text
from slime_events.app.cli.files import nats_place
from slime_events.app.cli.render.text import one_line
from slime_events.client.inbox import ROOM, InboxClient, ask_inbox, patient, produce
from slime_events.core.run.run_folder import RunFolder, find_run
from slime_events.loop.prompts.json_line import kind_of, without_mark
from slime_events.loop.prompts.offered import OFF_BYTES, conducted_until, offer
from slime_events.loop.prompts.outside import BadLine, Line, read_line
from slime_events.loop.prompts.refusals import ReasonCounts
from storage.jetstream.address import NatsAddress, read_credentials, refusal_of
from storage.nats.accounts import Access
from storage.open_log import live_address, open_run_log

PROGRESS_S = 2.0
LONGEST_LINE = 64 << 20
"""Most bytes of a line: more than any message to a run can have."""
SEEN = 3
"""Number of refused lines above which a summary of the reasons is printed at the end."""


def read_lines(file: IO[Any], name: str, *, key_field: str | None = None) -> Iterator[Line | BadLine]:
    """Yield the prompts of a file. A JSON list, or one object over several lines, is read as a whole.

    file: a binary file, or a text file with a binary buffer. key_field: the field with a prompt's key; by default
    `key`, or the sha256 of the line if the prompt has no such field.
    """
    source = getattr(file, "buffer", file)
    lines = ((number, line) for number, line in _lines(source) if line is None or line.strip())
    head = list(itertools.islice(lines, 1))
    first = (head[0][1] or b"") if head else b""
    if (kind := kind_of(first)) is not None:
        yield BadLine(name, "", kind)
        return
    if first.lstrip()[:1] != b"[" and first.strip() != b"{":
        for number, line in itertools.chain(head, lines):
            if line is None:
                yield BadLine(f"{name}:{number}", "", f"the line has more than {LONGEST_LINE >> 20} MiB")
            else:
                yield read_line(_stripped(line), f"{name}:{number}", key_field=key_field)
        return
    try:
        items = read_json(first + _bytes(source.read()), list[msgspec.Raw] | dict[str, Any])  # type: ignore[arg-type]
    except msgspec.DecodeError as error:
        yield BadLine(name, "", f"not JSON: {message_text(error)}")
        return
    if isinstance(items, dict):
        yield read_line(msgspec.json.encode(items), name, key_field=key_field)
        return
    for number, item in enumerate(items, 1):
        yield read_line(bytes(item), f"{name}:item {number}", key_field=key_field)


def _lines(file: IO[Any]) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and text of each line; None for a line longer than `LONGEST_LINE`."""
    number = 0
    while line := _bytes(file.readline(LONGEST_LINE)):
        whole = line
        while len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
            line = _bytes(file.readline(LONGEST_LINE))
        for part in whole.splitlines() if line is whole else [None]:
            number += 1
            yield number, part if part is None or number > 1 else without_mark(part)


def _bytes(text: str | bytes) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


def _stripped(line: bytes) -> bytes:
    """Strip Unicode white space: the key of a line is the sha256 of its stripped text."""
    try:
        return line.decode().strip().encode()
    except UnicodeDecodeError:
        return line.strip()


async def run(arguments: argparse.Namespace) -> int:
    """Send a file; return 1 if any line was refused."""
    if arguments.file == "-":
        return await send_file(arguments, sys.stdin)
    try:
        file = open(arguments.file, "rb")  # noqa: SIM115, ASYNC230  only errors of opening are caught
    except OSError as error:
        raise RunNotFound(f"{arguments.file} cannot be read: {error.strerror}") from error
    with file:
        return await send_file(arguments, file)


@contextlib.asynccontextmanager
async def _inbox(arguments: argparse.Namespace) -> AsyncIterator[InboxClient]:
    """Connect to the run's inbox, or open its log if the run is not running: prompts wait there.

    With --nats-url, or credentials that name a server, the run's folder may be on another machine. Raises RunNotFound,
    AccessDenied, LogUnavailable.
    """
    named = read_credentials(arguments.nats_creds).url if arguments.nats_creds else None
    server: NatsAddress | None
    folder: RunFolder | None = None
    if (place := nats_place(arguments, named)) is not None:
        server, run = place.address(), arguments.run
    else:
        folder = find_run(arguments.run, arguments.runs_dir)
        server, run = live_address(folder.path, Access.PRODUCER), folder.log_name()
        if server is None:
            _say_off(folder)
            async with open_run_log(folder.path, run) as log:
                yield InboxClient(lambda data: offer(log, data, "", "produce"), OFF_BYTES)
            return
    try:
        client = await nats.connect(
            **server.options(), connect_timeout=5, allow_reconnect=False, name="slime-events-produce"
        )
    except (nats.errors.Error, OSError, TimeoutError) as error:
        refusal = refusal_of(error, server.url)
        raise refusal or LogUnavailable(f"no NATS server answers at {server.url}. Is the run running?") from error
    try:
        yield _client_of(client, run, folder, arguments.timeout, arguments.wait)
    finally:
        await client.close()


def _say_off(folder: RunFolder) -> None:
    sys.stderr.write(f"run {folder.run} is not running: accepted prompts wait in its log\n")


def _client_of(client: NatsClient, run: str, folder: RunFolder | None, reply_s: float, wait_s: float) -> InboxClient:
    """Return a client of the run's inbox that waits until the run takes prompts.

    folder: the run's folder, if it is on this machine. If the run ends meanwhile, prompts then wait in its log, unless
    the run has made all its steps. reply_s, wait_s: seconds.
    """

    async def ask(data: bytes) -> InboxReply:
        return await ask_inbox(client, run, inbox(run), data, reply_s)

    async def on_wait() -> None:
        if folder is not None:
            async with open_run_log(folder.path, run) as log:
                if await log.last(about(run, "run", "run")) is not None:
                    await conducted_until(log)
        sys.stderr.write(f"run {run} takes no prompts yet: waiting, {wait_s:.0f} s at most\n")

    waiting, is_off = patient(ask, wait_s, lambda: client.is_closed, on_wait), False

    async def send(data: bytes) -> InboxReply:
        nonlocal is_off
        try:
            return await waiting(data)
        except LogUnavailable:
            if folder is None or live_address(folder.path, Access.PRODUCER) is not None:
                raise
        async with open_run_log(folder.path, run) as log:
            reply = await offer(log, data, "", "produce")
        if not is_off:
            _say_off(folder)
        is_off = True
        return reply

    return InboxClient(send, int(client.max_payload) - ROOM)


class _Progress:
    """Prints counts on a terminal, if the group ids go elsewhere."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty() and not sys.stdout.isatty()
        self._printed_at = time.monotonic()

    def say(self, taken: int, refused: int) -> None:
        """Print the counts, at most once in `PROGRESS_S` seconds."""
        if self._shows and time.monotonic() - self._printed_at >= PROGRESS_S:
            self._printed_at = time.monotonic()
            sys.stderr.write(f"{taken:,} accepted, {refused:,} refused so far\n")


async def send_file(arguments: argparse.Namespace, file: IO[Any]) -> int:
    """Print the group of each accepted line, and to standard error the reason of each refused line."""
    taken = refused = 0
    name = "standard input" if arguments.file == "-" else arguments.file
    lines = read_lines(file, name, key_field=arguments.key_field)
    progress, reasons = _Progress(), ReasonCounts()
    async with _inbox(arguments) as client:
        async for result in produce(client, lines, arguments.batch):
            if isinstance(result, BadLine):
                refused += 1
                reasons.add(f"{result.field + ': ' if result.field else ''}{result.message}")
                sys.stderr.write(f"{terminal_text(str(result))}\n")
            else:
                taken += 1
                line, group = result
                print(f"{group}  {one_line(line.key)}")
            progress.say(taken, refused)
    if refused > SEEN:
        sys.stderr.write(f"refused: {terminal_text(str(reasons))}\n")
    sys.stderr.write(f"{taken} accepted, {refused} refused\n")
    return int(refused > 0)
