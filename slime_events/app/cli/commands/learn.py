"""`slime-events learn`: a second trainer on the rollouts of a run; and `retrain --branch`, the same after changes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue
from schemas.steps import StepCommitted
from slime_events.app.cli.commands.train import INTERRUPTED, say
from slime_events.app.cli.run_argument import no_run
from slime_events.app.cli.run_arguments import read_words, version_of
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder

if TYPE_CHECKING:
    from slime_events.app.launch.learn import LearnerPlan, LearnerRequest
    from slime_events.core.run.run_reader import OpenedRun
    from storage.log import Recorded

HELP = """\
usage: slime-events learn RUN --run NAME [--from VERSION] [--follow] [--drop SQL] [--changes FILE] [flags]
       slime-events retrain RUN --branch NAME [--drop SQL] [--changes FILE] [flags]

A run of its own that is trained on the rollouts of RUN: one that is on, has finished, or of which only the archive is
left. It generates nothing. Which samples it takes, with which rewards, and how it trains on them is in its own log.

  --run, --branch NAME  name of the new run. If it is there, it goes on where it was stopped or killed
  --from VERSION        the weight version of RUN that it begins with [learn: the first; retrain: the newest that
                        nothing is changed before]
  --follow              go on until RUN ends [only what is in its log now]
  --drop SQL            train without these samples: a query over RUN with a column `sample` or `group_id`
  --changes FILE        JSON lines, as `slime-events rescore` writes them: rewards, verdicts, samples and groups dropped
  --runs-dir DIR        folder of all runs [that of RUN, or slime-runs]

Flags of the algorithm and the trainer, --dynamic-sampling-filter-path and --num-rollout may differ from RUN's.
"""
VALUES = ("--run", "--branch", "--from", "--drop", "--changes", "--runs-dir")


def main(argv: Sequence[str] = ()) -> int:
    """Learn to the end; 130 where it was interrupted. Errors are raised."""
    return _main(argv, "--run", first=True)


def retrain_into_a_branch(argv: Sequence[str]) -> int:
    """`retrain --branch`: train again from the first step that changes."""
    return _main(argv, "--branch", first=False)


def _main(argv: Sequence[str], naming: str, *, first: bool) -> int:
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(HELP)
        return 0
    run, asked = _asked(argv, naming)
    return _to_the_end(run, asked, first=first)


def _to_the_end(run: str, asked: LearnerRequest, *, first: bool) -> int:
    try:
        return asyncio.run(_learn(run, asked, first=first))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"stopped: everything that was acked is in the log of {asked.name}; the same command goes on from there")
        return INTERRUPTED


def go_on(folder: RunFolder, parent: str) -> int:
    """`resume` of a learner. parent: what the run that it follows is opened with."""
    from slime_events.app.launch.learn import LearnerRequest

    return _to_the_end(parent, LearnerRequest(name=folder.run, runs_dir=str(folder.path.parent)), first=True)


async def _learn(run: str, asked: LearnerRequest, *, first: bool) -> int:
    from slime_events.app.launch.learn import Learn, new_learner, plan_learner, runs_dir
    from slime_events.app.launch.preflight import check_learner
    from slime_events.core.run.run_reader import branched_of, open_run

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with open_run(run, asked.runs_dir or RUNS_DIR) as parent:
        folder, beginning = RunFolder(runs_dir(parent, asked), asked.name), None
        if folder.settings.exists():
            say(f"run {asked.name} is there and goes on, with the settings and changes that it began with")
        else:
            if first and asked.version is None:
                before = await branched_of(parent.log)
                asked = replace(asked, version=before.version if before else 0)
            prospect = await plan_learner(parent, asked)
            _say_prospect(parent, prospect)
            if prospect.version is None:
                return 0
            check_learner(prospect.parsed.settings)
            beginning = await new_learner(parent, prospect, RunFolder.create(runs_dir(parent, asked), asked.name))
    told = _Told(parent)
    version = await Learn(parent, folder, beginning, see=told.see, note=say).run()
    say(f"run {asked.name} has version {version}{told.text()}")
    say(_where(folder))
    return 0


def _say_prospect(parent: OpenedRun, prospect: LearnerPlan) -> None:
    outlook = prospect.preview
    for note in prospect.parsed.notes:
        say(f"note: {note}")
    if outlook.differing:
        differing = len(outlook.differing)
        what = (
            f"{len(outlook.gone)} samples gone, {len(outlook.joined)} joined, {len(outlook.regraded)} graded otherwise"
        )
        print(f"{differing} of {outlook.steps} batches of {parent.run} are others: {what}")
        print(f"the first is that of step {outlook.differing[0]}")
        if outlook.empty:
            print(f"nothing is left to train on in step {', '.join(map(str, outlook.empty))}")
    else:
        print(f"every batch is as {parent.run} trained it")
    if prospect.version is None:
        print("none of it was trained on, and no setting that trains is another: there is nothing to train")
    else:
        print(f"begins with version {prospect.version} of {parent.run}", flush=True)


class _Told:
    """Says each step of a learner's log as it is committed."""

    def __init__(self, parent: OpenedRun) -> None:
        self._parent = parent
        self._batches: dict[int, BatchSealed] = {}
        self._steps = self._samples = 0

    def see(self, recorded: Recorded) -> None:
        """Take in the next event."""
        event = recorded.envelope.event
        if isinstance(event, BatchSealed):
            self._batches[event.step] = event
        elif isinstance(event, StepCommitted):
            batch = self._batches.pop(event.step)
            self._steps, self._samples = self._steps + 1, self._samples + event.samples
            raw = batch.raw_rewards
            reward = f"reward {sum(raw) / len(raw):.3f}" if raw else "nothing left to train on"
            print(
                f"version {event.version}  {reward}  {event.samples} samples of {len(batch.groups)} groups  "
                f"{sum(event.seconds.values()):.2f} s  weights {event.weights_digest[:12]}",
                flush=True,
            )

    def text(self) -> str:
        """What it came to."""
        if not self._steps:
            return ""
        return f"; {self._steps} steps on {self._samples:,} samples of {self._parent.run}, none of them generated again"


def _asked(argv: Sequence[str], naming: str) -> tuple[str, LearnerRequest]:
    from slime_events.app.launch.learn import LearnerRequest

    words = read_words(argv, VALUES, ("--follow",))
    own = words.own
    if not words.run:
        command = "slime-events learn" if naming == "--run" else "slime-events retrain"
        raise no_run(command, own.get("--runs-dir", RUNS_DIR))
    if naming not in own:
        raise InvalidValue(f"say whose rollouts and who learns: RUN {naming} NAME (see --help)")
    return words.run, LearnerRequest(
        name=own[naming],
        version=version_of(own["--from"]) if "--from" in own else None,
        follow=bool(words.switches),
        drop=own.get("--drop"),
        changes=own.get("--changes"),
        runs_dir=own.get("--runs-dir"),
        flags=tuple(words.flags),
    )


def _where(folder: RunFolder) -> str:
    more = f" --runs-dir {folder.path.parent}" if folder.path.parent != Path(RUNS_DIR).absolute() else ""
    return f"everything lies in {folder.path}; `slime-events show {folder.run}{more}` shows it"
