"""`slime-events branch`: start a new run from a weight version of another run, with other settings."""

import argparse
import asyncio

from schemas.errors import InvalidValue
from schemas.runs import Branched
from slime_events.app.cli.commands.train import finish, resolve, run_to_end, say
from slime_events.app.launch.branch_settings import branch_settings, check_branch
from slime_events.app.launch.run_record import read_run_record
from slime_events.core.config.reach import check_reach
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder
from slime_events.core.run.run_reader import open_run
from slime_events.loop.prompts.prompt_files import check_prompt_files
from slime_events.model.branch_point import read_point, with_draws


def run(arguments: argparse.Namespace) -> int:
    """Branch off and train to the end; return 130 if the run was stopped before its last step."""
    check_arguments(arguments)
    settings, branched = asyncio.run(_read_parent(arguments))
    folder = RunFolder.create(settings.run.runs_dir, settings.run.run, settings.run.file_access)
    return finish(run_to_end(settings, folder=folder, branched=branched), folder, branched.version)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raise InvalidValue for a missing argument."""
    if arguments.name is None:
        raise InvalidValue("--run NAME is missing: name the new run")
    if arguments.version is None:
        raise InvalidValue("--from VERSION is missing: name the weight version to begin with")


async def _read_parent(arguments: argparse.Namespace) -> tuple[TrainSettings, Branched]:
    """Return the settings and the beginning of the branch. Writes nothing."""
    version = arguments.version
    async with open_run(arguments.run, arguments.runs_dir or RUNS_DIR) as parent:
        branched = await read_point(parent.log, version, parent.where, fresh_optimizer=arguments.reset_optimizer)
        beside = str(parent.folder.path.parent) if parent.folder else RUNS_DIR
        flags = (*arguments.flags, "--run", arguments.name)
        parsed = branch_settings(parent.settings, arguments.runs_dir or beside, flags)
        check_reach(parsed.settings)
        record = await read_run_record(parent.log)
        accept = arguments.accept_changed_data
        for note in check_prompt_files(record.prompt_files, parsed.settings, parent.run, accept=accept):
            say(note)
        check_branch(parent.settings, parsed.settings, version, fresh_optimizer=not branched.optimizer_digest)
        settings = await asyncio.to_thread(resolve, parsed)  # it has an event loop of its own
        return settings, await with_draws(branched, parent.log, settings.data)
