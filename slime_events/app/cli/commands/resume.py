"""`slime-events resume`: a run that stopped, by whatever death, goes on from its log."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from schemas.errors import InvalidValue, RunHasEnded, RunIsOn
from slime_events.app.cli.commands.train import INTERRUPTED, is_interrupted, reached, resolve, run_to_end, say, where
from slime_events.app.cli.run_argument import no_run
from slime_events.app.cli.run_arguments import read_words
from slime_events.core.config.flags import ParsedTrain, parse_train
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder, find_run

if TYPE_CHECKING:
    from slime_events.app.launch.run_record import Standing

HELP = """\
usage: slime-events resume RUN [--runs-dir DIR] [flags]

Goes on with a run that was interrupted, has failed or was killed: no acked token is lost, no sample is trained twice.
The settings are those that it was started with. Flags may change what does not enter into what is trained:

  --num-rollout N      more steps; also after the run has finished
  --rollout-deadline, --max-attempts, --max-deaths, --rm-timeout, --rm-workers, --distributed-timeout-minutes
  --rollout-num-gpus, --sglang-server-concurrency, --chunk-tokens, --chunk-seconds, --keep-weights
  --nats-url, --archive-seconds, --ray-address, --otlp-endpoint, --trace-share, --plain

A run that is on is not touched. One that has finished is left as it is.
"""


def main(argv: Sequence[str] = ()) -> int:
    """Resume; 130 where it was stopped before its last step. Errors are raised."""
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(HELP)
        return 0
    from slime_events.app.launch.run_lock import is_held

    folder, flags = run_and_flags(argv)
    if is_held(folder):
        raise RunIsOn(
            f"run {folder.run} is on: there is nothing to resume; `slime-events tail {folder.run}` follows it"
        )
    while True:
        try:
            return _go_on(folder, flags)
        except RunHasEnded as ended:
            say(str(ended))


def _go_on(folder: RunFolder, flags: Sequence[str]) -> int:
    """Resume from where the run stands now. Raises RunHasEnded where it does no longer stand there."""
    from slime_events.app.launch.run_record import changes, check_changes

    standing = asyncio.run(_look(folder))
    branched = standing.started.branched
    if branched is not None and branched.follows:
        if flags:
            raise InvalidValue(f"run {folder.run} learns from {branched.run}: it goes on with the settings that it has")
        from slime_events.app.cli.commands.learn import go_on

        return go_on(folder, branched.where)
    before = standing.settings
    settings = resolve(with_flags(before, flags), new=False)
    check_changes(changes(before, settings), standing.steps)
    steps = settings.rollout.num_rollout or 0
    if standing.has_finished and standing.steps >= steps:
        asyncio.run(_tidy(folder))
        if not folder.summary.exists():
            asyncio.run(_summarise(folder))
        say(f"run {folder.run} has finished all its {standing.steps} steps: nothing to do (--num-rollout N for more)")
        return 0
    say(f"run {folder.run} goes on after {standing.steps} of {steps} steps (resumption {standing.incarnation})")
    summary = run_to_end(settings, resumes=standing, folder=folder)
    if summary is None or is_interrupted(summary, settings):
        return INTERRUPTED
    say(reached(summary))
    say(where(folder, standing.first))
    return 0


async def _tidy(folder: RunFolder) -> None:
    """End what a launcher left that was killed in the last moments of a run, which then came to its end without it."""
    from slime_events.app.launch.log_server import LogServer
    from slime_events.app.launch.run_lock import holding
    from storage.nats.server import NatsServer

    server = NatsServer.attach(folder.nats)
    if server is not None and not server.record.temporary:
        with holding(folder) as before:
            async with LogServer(folder, None, say).running(before):
                pass


async def _summarise(folder: RunFolder) -> None:
    """What that launcher would have written, from the log; how long it took is not known."""
    from slime_events.analysis.model.progress import Progress
    from storage.open_log import open_run_log

    progress = Progress(folder.log_name())
    async with open_run_log(folder.path, folder.log_name()) as log:
        async for recorded in log.read():
            progress.apply(recorded)
    summary = progress.summary() | {"failure": None, "folder": str(folder.path)}
    folder.summary.write_text(json.dumps(summary, indent=2) + "\n")


async def _look(folder: RunFolder) -> Standing:
    from slime_events.app.launch.run_record import read_standing
    from storage.open_log import open_run_log

    async with open_run_log(folder.path, folder.log_name()) as log:
        return await read_standing(log)


def run_and_flags(argv: Sequence[str]) -> tuple[RunFolder, list[str]]:
    """The run's folder, and the flags that are for its settings. Raises InvalidValue, RunNotFound."""
    words = read_words(argv, ("--runs-dir",))
    if not words.run:
        raise no_run("slime-events resume", words.own.get("--runs-dir", RUNS_DIR))
    return find_run(words.run, words.own.get("--runs-dir", RUNS_DIR)), words.flags


def with_flags(settings: TrainSettings, flags: Sequence[str]) -> ParsedTrain:
    """The run's settings under the flags."""
    return parse_train(["--config", "the run's settings", *flags], read=lambda _: to_toml(settings))
