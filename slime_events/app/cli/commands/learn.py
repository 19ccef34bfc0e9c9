"""`slime-events learn` and `retrain --branch`: a second trainer on the rollouts of a run, changed or not."""

from __future__ import annotations

import argparse
import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue
from schemas.steps import StepCommitted
from slime_events.app.cli.commands.train import INTERRUPTED, say
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder

if TYPE_CHECKING:
    from slime_events.app.launch.learn import LearnerPlan, LearnerRequest
    from slime_events.core.run.run_reader import OpenedRun
    from storage.log import Recorded


def run(arguments: argparse.Namespace) -> int:
    """Learn to the end; 130 where it was interrupted. Errors are raised."""
    from slime_events.app.cli.arguments import RETRAIN_BRANCH
    from slime_events.app.launch.learn import LearnerRequest

    branches = arguments.command == RETRAIN_BRANCH
    if arguments.name is None:
        naming = "--branch" if branches else "--run"
        raise InvalidValue(f"say whose rollouts and who learns: RUN {naming} NAME (see --help)")
    asked = LearnerRequest(
        name=arguments.name,
        version=arguments.version,
        follow=arguments.follow,
        drop=arguments.drop,
        changes=arguments.changes,
        runs_dir=arguments.runs_dir,
        flags=arguments.flags,
    )
    return _to_the_end(arguments.run, asked, first=not branches)


def _to_the_end(parent: str, asked: LearnerRequest, *, first: bool) -> int:
    try:
        return asyncio.run(_learn(parent, asked, first=first))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"stopped: everything that was acked is in the log of {asked.name}; the same command continues from there")
        return INTERRUPTED


def continue_learner(folder: RunFolder, parent: str) -> int:
    """`resume` of a learner. parent: address of the run that it follows."""
    from slime_events.app.launch.learn import LearnerRequest

    return _to_the_end(parent, LearnerRequest(name=folder.run, runs_dir=str(folder.path.parent)), first=True)


async def _learn(parent_run: str, asked: LearnerRequest, *, first: bool) -> int:
    from slime_events.app.launch.learn import Learn, new_learner, plan_learner, runs_dir
    from slime_events.app.launch.preflight import check_learner
    from slime_events.core.run.run_reader import branched_of, open_run

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with open_run(parent_run, asked.runs_dir or RUNS_DIR) as parent:
        folder, beginning = RunFolder(runs_dir(parent, asked), asked.name), None
        if folder.settings.exists():
            say(f"run {asked.name} exists and continues, with the settings and changes that it began with")
        else:
            if first and asked.version is None:
                before = await branched_of(parent.log)
                asked = replace(asked, version=before.version if before else 0)
            prospect = await plan_learner(parent, asked)
            _print_prospect(parent, prospect)
            if prospect.version is None:
                return 0
            check_learner(prospect.parsed.settings)
            beginning = await new_learner(parent, prospect, RunFolder.create(runs_dir(parent, asked), asked.name))
    steps = _StepPrinter(parent)
    version = await Learn(parent, folder, beginning, see=steps.see, note=say).run()
    say(f"run {asked.name} has version {version}{steps.summary()}")
    say(_where(folder))
    return 0


def _print_prospect(parent: OpenedRun, prospect: LearnerPlan) -> None:
    outlook = prospect.preview
    for note in prospect.parsed.notes:
        say(f"note: {note}")
    if outlook.differing:
        differing = len(outlook.differing)
        regraded = len(outlook.regraded)
        what = f"{len(outlook.gone)} samples gone, {len(outlook.joined)} joined, {regraded} graded differently"
        print(f"{differing} of {outlook.steps} batches of {parent.run} differ: {what}")
        print(f"the first one is of step {outlook.differing[0]}")
        if outlook.empty:
            print(f"nothing is left to train on in step {', '.join(map(str, outlook.empty))}")
    else:
        print(f"every batch is as {parent.run} trained it")
    if prospect.version is None:
        print("no change reaches a trained batch, and no training setting differs: there is nothing to train")
    else:
        print(f"begins with version {prospect.version} of {parent.run}", flush=True)


class _StepPrinter:
    """Prints each step of a learner's log as it is committed."""

    def __init__(self, parent: OpenedRun) -> None:
        self._parent = parent
        self._batches: dict[int, BatchSealed] = {}
        self._steps = self._samples = 0

    def see(self, recorded: Recorded) -> None:
        """The next event."""
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

    def summary(self) -> str:
        """Steps and samples in all."""
        if not self._steps:
            return ""
        return f"; {self._steps} steps on {self._samples:,} samples of {self._parent.run}, none of them generated again"


def _where(folder: RunFolder) -> str:
    more = f" --runs-dir {folder.path.parent}" if folder.path.parent != Path(RUNS_DIR).absolute() else ""
    return f"everything lies in {folder.path}; `slime-events show {folder.run}{more}` shows it"
