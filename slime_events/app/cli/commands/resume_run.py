"""A run that was found, and goes on: with the settings and flags that it is to have now."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence

from schemas.errors import InvalidValue
from schemas.trust import doubting
from slime_events.algorithms.train_arguments import parse_train
from slime_events.analysis.model.progress import Progress
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
from storage.nats.server import NatsServer
from storage.open_log import open_run_log, record_place, recorded_place


def resume(folder: RunFolder, record: RunRecord, flags: Sequence[str], *, accept_changed_data: bool = False) -> int:
    """Resume by the run's status now; the exit code. Raises RunHasEnded where it changes meanwhile, InvalidValue where
    its prompt files have changed and that is not accepted.
    """
    branched = record.started.branched
    check_reach(record.settings, flags=flags)
    if branched is not None and branched.follows:
        if flags:
            raise InvalidValue(
                f"run {folder.run} learns from {branched.run}: it continues with the settings that it has"
            )
        from slime_events.app.cli.commands.learn import continue_learner  # replay, which imports this, needs none

        return continue_learner(folder, branched.where)
    parsed = with_flags(record.settings, flags)
    if not record.is_over(parsed.settings.rollout.num_rollout):  # else nothing is drawn any more
        for note in check_prompt_files(record.prompt_files, parsed.settings, folder.run, accept=accept_changed_data):
            say(note)
    settings = resolve(parsed, new=False)
    folder.restored.unlink(missing_ok=True)  # all that they name is the user's from here on
    check_changes(changes(record.settings, settings), record.steps)
    steps = settings.rollout.num_rollout or 0
    if record.is_over(steps):
        asyncio.run(_tidy(folder))
        say(f"run {folder.run} has finished all its {record.steps} steps: nothing to do (--num-rollout N for more)")
        return 0
    say(f"run {folder.run} continues after {record.steps} of {steps} steps (resumption {record.incarnation})")
    return finish(run_to_end(settings, resumes=record, folder=folder), folder, record.first)


@contextlib.contextmanager
def doubting_archive(folder: RunFolder, record: RunRecord) -> Iterator[None]:
    """Doubt what only the archive names that the run was restored from; of any other run nothing."""
    trusted, texts = folder.trusted(), set[str]()
    if trusted is not None:
        branched = record.started.branched
        parent = {branched.where} if branched is not None and "://" in branched.where else set()
        texts = reaching_texts(record.settings) | parent
    with doubting(texts, but=trusted or ()):
        yield


def look_where_told(folder: RunFolder, flags: Sequence[str]) -> None:
    """Where flags say that the log is now, or with which credentials: the run's settings are read from there."""
    if recorded_place(folder.path) is not None:
        told = nats_place(parse_train(["--config", str(folder.settings), *flags]).settings.run)
        if told is not None:
            record_place(folder.path, told)


async def _tidy(folder: RunFolder) -> None:
    """After a launcher that was killed just before the run finished without it: end its processes, and write the
    summary that it did not, from the log; the run's seconds are unknown.
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
    """The run's settings under the flags."""
    return parse_train(["--config", "the run's settings", *flags], read=lambda _: to_toml(settings))
