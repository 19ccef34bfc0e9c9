"""`slime-events learn` and `retrain --branch`: train a new run on the rollouts of another run, changed or not."""

import argparse
import asyncio
import signal
from dataclasses import replace

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue
from schemas.steps import StepCommitted
from slime_events.app.cli.arguments import RETRAIN_BRANCH
from slime_events.app.cli.commands.train import INTERRUPTED, say
from slime_events.app.launch.learn import Learn, LearnerPlan, LearnerRequest, new_learner, plan_learner, runs_dir
from slime_events.app.launch.preflight import check_learner
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of, open_run
from storage.log import Recorded


def run(arguments: argparse.Namespace) -> int:
    """Learn to the end; return 130 if interrupted."""
    branches = arguments.command == RETRAIN_BRANCH
    if arguments.name is None:
        naming = "--branch" if branches else "--run"
        raise InvalidValue(f"{naming} NAME is missing: give RUN {naming} NAME (see --help)")
    request = LearnerRequest(
        name=arguments.name,
        version=arguments.version,
        follow=arguments.follow,
        drop=arguments.drop,
        changes=arguments.changes,
        runs_dir=arguments.runs_dir,
        flags=arguments.flags,
    )
    return _to_the_end(arguments.run, request, first=not branches)


def continue_learner(folder: RunFolder, parent: str) -> int:
    """Resume a learner. parent: address of the run that it follows."""
    return _to_the_end(parent, LearnerRequest(name=folder.run, runs_dir=str(folder.path.parent)), first=True)


def _to_the_end(parent: str, request: LearnerRequest, *, first: bool) -> int:
    try:
        return asyncio.run(_learn(parent, request, first=first))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"stopped: all acked events are in the log of {request.name}; use the same command to continue from there")
        return INTERRUPTED


async def _learn(parent_run: str, request: LearnerRequest, *, first: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with open_run(parent_run, request.runs_dir or RUNS_DIR) as parent:
        folder, beginning = RunFolder(runs_dir(parent, request), request.name), None
        if folder.settings.exists():
            say(f"run {request.name} exists and continues, with the settings and changes that it was started with")
        else:
            if first and request.version is None:
                before = await branched_of(parent.log)
                request = replace(request, version=before.version if before else 0)
            plan = await plan_learner(parent, request)
            _print_plan(parent, plan)
            if plan.version is None:
                return 0
            check_learner(plan.parsed.settings)
            access = plan.parsed.settings.run.file_access
            created = RunFolder.create(runs_dir(parent, request), request.name, access)
            beginning = await new_learner(parent, plan, created)
    steps = _StepPrinter()
    version = await Learn(parent, folder, beginning, see=steps.see, note=say).run()
    samples = f"{sum(steps.samples):,} samples of {parent.run}, none of them generated again"
    trained = f" after {len(steps.samples)} steps on {samples}" if steps.samples else ""
    say(f"run {request.name} has weight version {version}{trained}")
    say(f"the run's files are in {folder.path}; show it with `slime-events show {folder.named}`")
    return 0


def _print_plan(parent: OpenedRun, plan: LearnerPlan) -> None:
    preview = plan.preview
    for note in plan.parsed.notes:
        say(f"note: {note}")
    if preview.differing:
        regraded = len(preview.regraded)
        what = f"{len(preview.gone)} samples removed, {len(preview.joined)} added, {regraded} graded differently"
        what += f", {len(preview.recredited)} credited by another rule" if preview.recredited else ""
        print(f"{len(preview.differing)} of {preview.steps} batches of {parent.run} differ: {what}")
        print(f"the first batch that differs is that of step {preview.differing[0]}")
        if preview.empty:
            print(f"nothing is left to train on in step {', '.join(map(str, preview.empty))}")
    else:
        print(f"every batch is the same as in {parent.run}")
    if plan.version is None:
        print("no change affects a trained batch, and no training setting differs: there is nothing to train")
    else:
        print(f"begins with weight version {plan.version} of {parent.run}", flush=True)


class _StepPrinter:
    """Prints each step of a learner's log when it is committed."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        """Trained samples by step."""
        self._batches: dict[int, BatchSealed] = {}

    def see(self, recorded: Recorded) -> None:
        """Take the next event of the log."""
        event = recorded.envelope.event
        if isinstance(event, BatchSealed):
            self._batches[event.step] = event
        elif isinstance(event, StepCommitted):
            batch = self._batches.pop(event.step)
            self.samples.append(event.samples)
            raw = batch.raw_rewards
            reward = f"reward {sum(raw) / len(raw):.3f}" if raw else "nothing left to train on"
            print(
                f"version {event.version}  {reward}  {event.samples} samples of {len(batch.groups)} groups  "
                f"{sum(event.seconds.values()):.2f} s  weights {event.weights_digest[:12]}",
                flush=True,
            )
