"""`slime-events tail`: the events of a run, as they come or as they came, one readable line each."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from slime_events.app.cli.render.event_line import event_line
from slime_events.app.cli.render.json_values import plain_event
from slime_events.app.cli.run_argument import RunParser, live_url
from slime_events.app.follow_events import IsOn, Wanted, check_types, events
from slime_events.app.launch.run_status import MEANINGS, RunStatus, is_launched, last_run_event, status_of
from slime_events.core.run.run_folder import find_run
from slime_events.core.run.run_reader import is_archive, open_archive
from storage.archive.log import ArchivedLog
from storage.log import Readable
from storage.open_log import open_run_log


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
        status = status_of(await last_run_event(log), await is_on())
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
