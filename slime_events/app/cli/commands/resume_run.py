"""Continue a run from its record, with its settings and the flags of the command."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence

from schemas.errors import InvalidValue
from schemas.trust import doubting
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.commands.train import finish, resolve, run_to_end, say
from slime_events.app.launch.log_server import LogServer
from slime_events.app.launch.run_lock import holding
from slime_events.app.launch.run_record import RunRecord, changes, check_changes
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.reach import check_reach, reaching_texts
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_settings import nats_place
from slime_events.loop.prompts.prompt_files import check_prompt_files
from slime_events.model.progress import Progress
from storage.nats.server import NatsServer
from storage.open_log import open_run_log, record_place, recorded_place


def resume(folder: RunFolder, record: RunRecord, flags: Sequence[str], *, accept_changed_data: bool = False) -> int:
    """Resume the run and return the exit code.

    Raises RunHasEnded if the run's status changes meanwhile, InvalidValue if its prompt files have changed and
    `accept_changed_data` is not set.
    """
    branched = record.started.branched
    check_reach(record.settings, flags=flags)
    if branched is not None and branched.follows:
        if flags:
            raise InvalidValue(
                f"run {folder.run} learns from {branched.run}, so its settings cannot change: resume it without flags"
            )
        from slime_events.app.cli.commands.learn import (
            continue_learner,  # replay imports this module and needs no learner
        )

        return continue_learner(folder, branched.where)
    parsed = with_flags(record.settings, flags)
    if not record.is_over(parsed.settings.rollout.num_rollout):  # a run that is over draws no more prompts
        for note in check_prompt_files(record.prompt_files, parsed.settings, folder.run, accept=accept_changed_data):
            say(note)
    settings = resolve(parsed, new=False)
    folder.restored.unlink(missing_ok=True)  # from here on the user has accepted every address in the settings
    check_changes(changes(record.settings, settings), record.steps)
    steps = settings.rollout.num_rollout or 0
    if record.is_over(steps):
        asyncio.run(_tidy(folder))
        say(f"run {folder.run} has finished all its {record.steps} steps: nothing to do. For more: --num-rollout N")
        return 0
    say(f"run {folder.run} continues after {record.steps} of {steps} steps (resumption {record.incarnation})")
    return finish(run_to_end(settings, resumes=record, folder=folder), folder, record.first)


@contextlib.contextmanager
def doubting_archive(folder: RunFolder, record: RunRecord) -> Iterator[None]:
    """Distrust code and addresses that only the archive of a restored run names; trust those of any other run."""
    trusted, texts = folder.trusted(), set[str]()
    if trusted is not None:
        branched = record.started.branched
        parent = {branched.where} if branched is not None and "://" in branched.where else set()
        texts = reaching_texts(record.settings) | parent
    with doubting(texts, but=trusted or ()):
        yield


def record_new_place(folder: RunFolder, flags: Sequence[str]) -> None:
    """Record the NATS server and credentials in `flags`: the run's log is read there."""
    if recorded_place(folder.path) is not None:
        place = nats_place(parse_train(["--config", str(folder.settings), *flags]).settings.run)
        if place is not None:
            record_place(folder.path, place)


async def _tidy(folder: RunFolder) -> None:
    """Clean up after a launcher that was killed just before its run finished.

    Ends the launcher's processes and writes the missing summary from the log, without the run's seconds.
    """
    server = NatsServer.attach(folder.nats)
    if server is not None and not server.record.temporary:
        with holding(folder) as before:
            async with LogServer(folder, folder.log_name(), None, say).running(before):
                pass
    if folder.summary.exists():
        return
    progress = Progress(folder.log_name())
    async with open_run_log(folder.path, folder.log_name()) as log:
        async for recorded in log.read():
            progress.apply(recorded)
    summary = progress.summary() | {"failure": None, "folder": str(folder.path)}
    folder.summary.write_text(json.dumps(summary, indent=2) + "\n")


def with_flags(settings: TrainSettings, flags: Sequence[str]) -> ParsedTrain:
    """Apply flags to a run's settings."""
    return parse_train(["--config", "the run's settings", *flags], read=lambda _: to_toml(settings))
