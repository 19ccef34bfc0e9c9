"""`slime-events tail`: the events of a run, as they come or as they came, one readable line each."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.registry import BY_TYPE, NOUNS
from slime_events.app.cli.render.event_line import event_line
from slime_events.app.cli.render.json_values import plain_event
from slime_events.app.cli.run_argument import RunParser, live_url
from slime_events.app.launch.run_status import MEANINGS, RunStatus, is_launched, last_word, status_of
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.run.participant import is_over
from slime_events.core.run.run_folder import find_run
from slime_events.core.run.run_reader import is_archive, open_archive
from storage.archive.log import ArchivedLog
from storage.follow import Follower
from storage.log import Readable, Recorded
from storage.open_log import open_run_log

QUIET_S = 1.0
"""Seconds without an event after the end of a run, until nothing more is expected of it."""

IsOn = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are shown. types: whole types or nouns; the rest narrows further. start: first position."""

    types: tuple[str, ...] = ()
    group: str | None = None
    sample: str | None = None
    start: int = 1

    def takes(self, recorded: Recorded) -> bool:
        """Whether an event is one of those."""
        kind = recorded.envelope.type
        if self.types and kind not in self.types and kind.partition(".")[0] not in self.types:
            return False
        if self.sample and self.sample not in _samples(recorded):
            return False
        return not self.group or self.group in _groups(recorded)


def _samples(recorded: Recorded) -> tuple[str, ...]:
    event = recorded.envelope.event
    if isinstance(event, BatchSealed | GroupAccepted | GroupRejected):
        return event.samples
    return (getattr(event, "sample", ""),)


def _groups(recorded: Recorded) -> tuple[str, ...]:
    event = recorded.envelope.event
    if isinstance(event, BatchSealed):
        return event.groups
    sample = getattr(event, "sample", "")
    return (getattr(event, "group", "") or group_of(sample),)


def check_types(types: Sequence[str]) -> tuple[str, ...]:
    """The types themselves; InvalidValue with the nearest names where nothing is of one."""
    known = (*BY_TYPE, *NOUNS)
    for one in types:
        if one not in known:
            raise InvalidValue(f"--type {one}: there is no such event.{did_you_mean(one, known)}")
    return tuple(types)


async def events(log: Readable, wanted: Wanted, *, follow: IsOn | None) -> AsyncIterator[Recorded]:
    """What is in the log and, while the run is on, what comes. follow: whether a launcher is on; None: not at all.

    Ends by itself when the run has ended, or has no launcher any more and is quiet.
    """
    if follow is None:
        async for recorded in log.read(wanted.start):
            if wanted.takes(recorded):
                yield recorded
        return
    last = await log.last(f"slime.{log.run}.run.>")
    over = last is not None and is_over(False, last.envelope.event)
    async with Follower(log, wanted.start) as follower:
        while True:
            batch = await follower.next(wait_s=QUIET_S)
            if not batch and (over or not await follow()):
                return
            for recorded in batch:
                over = is_over(over, recorded.envelope.event)
                if wanted.takes(recorded):
                    yield recorded


def main(argv: Sequence[str] = ()) -> int:
    """Print events until the run ends, or Ctrl-C."""
    said = _parser().parse_args(argv)
    wanted = Wanted(check_types(said.type), said.group, said.sample, said.start)
    asyncio.run(_tail(wanted, said))
    return 0


async def _tail(wanted: Wanted, said: argparse.Namespace) -> None:
    if is_archive(said.run):
        reader = open_archive(said.run)
        await _print(ArchivedLog(reader, reader.run), wanted, said, follow=None)
        return
    folder = find_run(said.run, said.runs_dir)
    live = live_url(folder) is not None
    async with open_run_log(folder.path, folder.log_name()) as log:

        async def is_on() -> bool:
            return await is_launched(folder, log)

        await _print(log, wanted, said, follow=is_on if live and not said.no_follow else None)
        status = status_of(await last_word(log), await is_on())
        if status is RunStatus.KILLED:
            sys.stderr.write(f"run {log.run} is {status}: {MEANINGS[status].format(run=folder.run)}\n")


async def _print(log: Readable, wanted: Wanted, said: argparse.Namespace, *, follow: IsOn | None) -> None:
    async for recorded in events(log, wanted, follow=follow):
        text = json.dumps(plain_event(recorded, full=said.full)) if said.json else event_line(recorded)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(prog="slime-events tail", description=__doc__)
    parser.add_argument(
        "--type",
        nargs="+",
        action="extend",
        default=[],
        metavar="TYPE",
        help="event types (rollout.completed) or nouns (rollout)",
    )
    parser.add_argument("--group", help="only what is about this group")
    parser.add_argument("--sample", help="only what is about this sample")
    parser.add_argument("--from", dest="start", type=int, default=1, metavar="N", help="first position [1]")
    parser.add_argument("--no-follow", action="store_true", help="end at the last event there is")
    parser.add_argument("--json", action="store_true", help="one JSON object per event; arrays as type and length")
    parser.add_argument("--full", action="store_true", help="with --json: arrays in full")
    return parser
