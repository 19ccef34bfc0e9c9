"""`slime-events resume`: continue a run from its log after an interruption, a failure or a kill.

The server of a long log takes a second to start. So this module imports only the code that finds the run, and the rest
while the server starts.
"""

import argparse
import asyncio
import contextlib
import importlib

from schemas.errors import RunHasEnded, RunIsOn
from slime_events.app.launch.run_lock import is_held
from slime_events.app.launch.run_record import RunRecord, read_run_record
from slime_events.core.run.run_folder import RunFolder, find_run
from storage.open_log import keeping_server, open_run_log

CONTINUES = ("slime_events.app.cli.commands.resume_run", "slime_events.app.launch.run", "ray")


def run(arguments: argparse.Namespace) -> int:
    """Resume a run; return 130 if it was stopped before its last step."""
    folder = find_run(arguments.run, arguments.runs_dir)
    if is_held(folder):
        raise RunIsOn(
            f"run {folder.run} is running: there is nothing to resume. Follow it with `slime-events tail {folder.run}`"
        )
    if any(flag.startswith("--nats-") for flag in arguments.flags):
        from slime_events.app.cli.commands.resume_run import record_new_place

        record_new_place(folder, arguments.flags)
    while True:
        try:
            with keeping_server(folder.path):
                record = asyncio.run(_read_record(folder))
                from slime_events.app.cli.commands.resume_run import doubting_archive, resume

                accept = arguments.accept_changed_data
                with doubting_archive(folder, record):
                    return resume(folder, record, arguments.flags, accept_changed_data=accept)
        except RunHasEnded as ended:
            from slime_events.app.cli.commands.train import say

            say(str(ended))


async def _read_record(folder: RunFolder) -> RunRecord:
    importing = asyncio.create_task(asyncio.to_thread(_import_the_rest))
    try:
        async with open_run_log(folder.path, folder.log_name()) as log:
            return await read_run_record(log)
    finally:
        await importing


def _import_the_rest() -> None:
    for name in CONTINUES:
        with contextlib.suppress(ImportError):  # the code that needs the module reports it
            importlib.import_module(name)
