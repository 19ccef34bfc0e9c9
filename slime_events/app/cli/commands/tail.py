"""`slime-events tail`: print the events of a run, one line each, and follow a running run."""

import argparse
import sys

from slime_events.app.cli.render.event_line import event_line
from slime_events.app.cli.render.text import json_line
from slime_events.app.follow_events import EventFilter, IsRunning, check_types, events
from slime_events.app.launch.run_status import is_launched
from slime_events.core.run.run_folder import find_run
from slime_events.core.run.run_reader import is_archive, open_archive
from slime_events.model.json_values import plain_event
from slime_events.model.run_status import MEANINGS, RunStatus, last_run_event, status_of
from storage.archive.log import ArchivedLog
from storage.log import Readable
from storage.nats.accounts import Access
from storage.open_log import live_address, open_run_log


async def run(arguments: argparse.Namespace) -> int:
    """Print events until the run ends, or until Ctrl-C."""
    query = EventFilter(check_types(arguments.type), arguments.group, arguments.sample, arguments.start)
    if is_archive(arguments.run):
        reader = open_archive(arguments.run)
        await _print(ArchivedLog(reader, reader.run), query, arguments, follow=None)
        return 0
    folder = find_run(arguments.run, arguments.runs_dir)
    live = live_address(folder.path, Access.VIEWER) is not None
    async with open_run_log(folder.path, folder.log_name()) as log:

        async def is_running() -> bool:
            return await is_launched(folder, log)

        await _print(log, query, arguments, follow=is_running if live and not arguments.no_follow else None)
        status = status_of(await last_run_event(log), await is_running())
        if status is RunStatus.KILLED:
            sys.stderr.write(f"run {log.run} is {status}: {MEANINGS[status].format(run=folder.run)}\n")
    return 0


async def _print(log: Readable, query: EventFilter, arguments: argparse.Namespace, *, follow: IsRunning | None) -> None:
    async for recorded in events(log, query, follow=follow):
        text = json_line(plain_event(recorded, full=arguments.full)) if arguments.json else event_line(recorded)
        print(text, flush=True)
