"""`slime-events train`: one run, from flags to its summary."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import ConfigError, SlimeEventsError
from slime_events.app.cli.watched import say_how_to_go_on
from slime_events.core.config.flags import ParsedTrain, parse_train
from slime_events.core.config.paths import require_paths
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_folder import RunFolder

if TYPE_CHECKING:
    from schemas.runs import Branched
    from slime_events.app.launch.run_record import Standing

INTERRUPTED = 130


def main(argv: Sequence[str] = ()) -> int:
    """Train. 130 where it was stopped before its last step; errors are raised."""
    if "--help" in argv or "-h" in argv:
        from slime_events.core.config.document import help_text

        sys.stdout.write(help_text(max(60, min(120, shutil.get_terminal_size().columns))))
        return 0
    settings = resolve(parse_train(argv))
    summary = run_to_end(settings)
    if summary is None or is_interrupted(summary, settings):
        return INTERRUPTED
    say(reached(summary))
    say(where(RunFolder(settings.run.runs_dir, settings.run.run)))
    return 0


def resolve(parsed: ParsedTrain, *, new: bool = True) -> TrainSettings:
    """Settings that can start: every note said, everything tried that can be, the number of steps known.

    new: see `check_start`.
    """
    from slime_events.app.cli.epochs import resolve_epochs
    from slime_events.app.launch.preflight import check_start

    for note in parsed.notes:
        say(f"note: {note}")
    require_paths(parsed.settings)
    check_start(parsed.settings, new=new)
    settings, counted = resolve_epochs(parsed.settings)
    if counted:
        say(f"note: {counted}")
    return settings


def run_to_end(
    settings: TrainSettings,
    *,
    resumes: Standing | None = None,
    folder: RunFolder | None = None,
    branched: Branched | None = None,
) -> dict[str, Any] | None:
    """The summary; None where it was interrupted by force. Whatever ends it early, the last words say how to go on.

    resumes: where the run stands that is to go on, in its folder; None for a new one. branched: where a new one goes on
    from, if not from its base checkpoint.
    """
    # A taken name is said before anything heavy starts.
    folder = folder or RunFolder.create(settings.run.runs_dir, settings.run.run)
    say_how_to_go_on(goes_on(folder))
    from slime_events.app.launch.live_view import make_view
    from slime_events.app.launch.run import launch

    view = make_view(settings.run.plain, _waits_for(settings))
    try:
        summary = launch(settings, view, resumes=resumes, folder=folder, branched=branched)
    except KeyboardInterrupt:
        view.close()
        say(stopped(folder))
        return None
    except SlimeEventsError as error:
        view.close()
        if folder.settings.exists() and not isinstance(error, ConfigError):
            say(f"everything that was acked is in the log; once the cause is gone, {goes_on(folder)}")
        raise
    finally:
        view.close()
    if is_interrupted(summary, settings):
        say(stopped(folder))
    return summary


def _waits_for(settings: TrainSettings) -> Any:
    """What a run waits for, in words, from its state."""
    from slime_events.loop.conductor.decide import waits_for
    from slime_events.loop.conductor.plan import make_plan

    plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
    return lambda state: waits_for(state, plan)


def is_interrupted(summary: dict[str, Any], settings: TrainSettings) -> bool:
    """Whether the run ended before its last step."""
    return int(summary["steps"]) < (settings.rollout.num_rollout or 0)


def stopped(folder: RunFolder) -> str:
    """What an interrupted run has kept, and how to go on with it."""
    return f"stopped: everything that was acked is in the log; {goes_on(folder)}"


def goes_on(folder: RunFolder) -> str:
    """How to go on."""
    name = _name(folder)
    return f"`slime-events resume {name}` goes on from there, `slime-events show {name}` shows how far it came"


def reached(summary: dict[str, Any]) -> str:
    """What a run came to, in one line."""
    first, last, seconds = summary["reward_first"], summary["reward_last"], summary["seconds"]
    line = f"{summary['steps']} steps, {summary['events']:,} events, {seconds:.0f} s"
    line += f", reward {first:.3f} -> {last:.3f}" if first is not None else ""
    if summary.get("eval_last") is None:
        return line
    failed, made_by = summary.get("eval_last_failed"), summary.get("eval_last_by")
    line += f", eval {summary['eval_last']:.3f}" + (f" (answers by {made_by})" if made_by else "")
    return line + (f" ({failed} samples of it failed)" if failed else "")


def where(folder: RunFolder, first: int = 0) -> str:
    """Where everything lies, and what to look at. first: the run's first step."""
    name = _name(folder)
    return "\n".join([
        f"everything lies in {folder.path}: log, archive, weights, traces, process logs, summary.json",
        f"  slime-events show {name}             the run, step by step",
        f"  slime-events show {name} --step {first}    what a step was trained on",
        f"  slime-events show {name} --verify    the log folds to the state that the run ended with",
    ])  # fmt: skip


def _name(folder: RunFolder) -> str:
    from slime_events.core.run.run_folder import RUNS_DIR

    runs_dir = folder.path.parent
    return folder.run + (f" --runs-dir {runs_dir}" if runs_dir != Path(RUNS_DIR).absolute() else "")


def say(text: str) -> None:
    """A line for people, beside what a command prints."""
    print(text, file=sys.stderr, flush=True)
