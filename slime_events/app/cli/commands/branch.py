"""`slime-events branch`: a new run that goes on from a weight version of another, with other settings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.errors import InvalidValue
from slime_events.app.cli import run_arguments as words_of
from slime_events.app.cli.commands.train import INTERRUPTED, is_interrupted, reached, resolve, run_to_end, say, where
from slime_events.app.cli.run_argument import no_run
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder

if TYPE_CHECKING:
    from schemas.runs import Branched
    from slime_events.core.config.settings import TrainSettings

HELP = """\
usage: slime-events branch RUN --from VERSION --run NAME [--reset-optimizer] [--runs-dir DIR] [any flag of train ...]

A new run that goes on from weight version VERSION of RUN: one that is on, has finished, or of which only the archive is
left (<--archive-url>/<name>). Its past is RUN's log up to there, which is shared, not copied.

  --from VERSION     the weight version that it begins with
  --run NAME         name of the new run
  --reset-optimizer  begin with a new optimizer and schedule; else both go on where they were
  --runs-dir DIR     folder of all runs [that of RUN, or slime-runs]

Settings that no flag changes are RUN's. --num-rollout counts the steps of RUN up to VERSION too.
"""


@dataclass(frozen=True, slots=True)
class _Said:
    """The command's own words; `flags` are for the settings."""

    run: str
    version: int
    runs_dir: str | None
    fresh_optimizer: bool
    flags: tuple[str, ...]


def main(argv: Sequence[str] = ()) -> int:
    """Branch off and train to the end; 130 where it was stopped before its last step. Errors are raised."""
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(HELP)
        return 0
    said = read_words(argv)
    settings, branched = asyncio.run(_look(said))
    folder = RunFolder.create(settings.run.runs_dir, settings.run.run)
    summary = run_to_end(settings, folder=folder, branched=branched)
    if summary is None or is_interrupted(summary, settings):
        return INTERRUPTED
    say(reached(summary))
    say(where(folder, branched.version))
    return 0


async def _look(said: _Said) -> tuple[TrainSettings, Branched]:
    """What the branch begins with. Nothing is written yet."""
    from slime_events.analysis.model.branch_point import read_point, with_draws
    from slime_events.app.launch.branch_settings import branch_settings, check_branch
    from slime_events.core.run.run_reader import open_run

    async with open_run(said.run, said.runs_dir or RUNS_DIR) as parent:
        branched = await read_point(parent.log, said.version, parent.where, fresh_optimizer=said.fresh_optimizer)
        beside = str(parent.folder.path.parent) if parent.folder else RUNS_DIR
        parsed = branch_settings(parent.settings, said.runs_dir or beside, said.flags)
        fresh = not branched.optimizer_digest
        check_branch(parent.settings, parsed.settings, said.version, fresh_optimizer=fresh)
        settings = await asyncio.to_thread(resolve, parsed)  # it has an event loop of its own
        return settings, await with_draws(branched, parent.log, settings.data)


def read_words(argv: Sequence[str]) -> _Said:
    """The command's own words out of the rest. Raises InvalidValue."""
    words = words_of.read_words(argv, ("--from", "--runs-dir", "--run"), ("--reset-optimizer",))
    if not words.run:
        raise no_run("slime-events branch", words.own.get("--runs-dir", RUNS_DIR))
    if "--run" not in words.own:
        raise InvalidValue("--run NAME is missing: a branch is a run of its own")
    if "--from" not in words.own:
        raise InvalidValue("--from VERSION is missing: the weight version to begin with")
    return _Said(
        words.run,
        words_of.version_of(words.own["--from"]),
        words.own.get("--runs-dir"),
        bool(words.switches),
        (*words.flags, "--run", words.own["--run"]),
    )
