"""`slime-events train`: train one run, from flags to its summary."""

import argparse
import contextlib
import os
import sys
from typing import Any

from msgspec.structs import replace

from schemas.errors import ConfigError, InvalidValue, SlimeEventsError
from schemas.runs import Branched
from schemas.trust import name_words
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.watched import announce_recovery
from slime_events.app.launch.gpu_facts import machines
from slime_events.app.launch.machine_facts import facts_of
from slime_events.app.launch.model_preflight import memory_note
from slime_events.app.launch.preflight import check_start
from slime_events.app.launch.run_record import RunRecord
from slime_events.app.launch.slime_folders import as_in_slime
from slime_events.app.launch.view import make_view
from slime_events.app.loggers.open_loggers import missing
from slime_events.core.config.derivations import GPU_KEPT, GPU_SAVE_INTERVAL, derive
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.idle import crowded, idle_on_cpu
from slime_events.core.config.paths import require_paths
from slime_events.core.config.reach import reaching_texts
from slime_events.core.config.secrets import secrets_of
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.machine.cuda_toolkit import find_toolkit
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.planning.needs import Needs
from slime_events.core.run.local_models import LocalModels
from slime_events.core.run.run_folder import RunFolder
from slime_events.loop.conductor.decide import waits_for
from slime_events.loop.conductor.plan import make_plan
from slime_events.loop.conductor.user_data_source import source_length
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.args_view import ArgsView

INTERRUPTED = 130


def run(arguments: argparse.Namespace) -> int:
    """Train; return 130 if the run was stopped before its last step."""
    parsed = parse_train(arguments.flags)
    if arguments.print_config:
        for note in parsed.notes:
            say(f"note: {note}")
        print(to_toml(parsed.settings), end="")
        return 0
    RunFolder(parsed.settings.run.runs_dir, parsed.settings.run.run).check_new()
    settings = resolve(parsed)
    if arguments.dry_run:
        return _show_plan(LocalModels.of(settings).settings)
    return finish(run_to_end(settings), RunFolder(settings.run.runs_dir, settings.run.run))


def _show_plan(settings: TrainSettings) -> int:
    """Print the plan of a run that could start now."""
    if settings.engine.device == "cuda":
        from slime_events.app.cli.commands.plan import show_plan

        return show_plan(settings, facts_of(machines(settings.run.ray_address)), Assumptions())
    needs = Needs.of(settings)
    print(f"the run fits. Processes on the CPU: trainer ranks {needs.ranks}, engines {needs.engines}")
    return 0


def finish(summary: dict[str, Any] | None, folder: RunFolder, first: int = 0) -> int:
    """Print the result and the paths of a run, and return the exit code.

    summary: result of `run_to_end`. first: the run's first step.
    """
    if summary is None:
        return INTERRUPTED
    say(reached(summary))
    say(where(folder, first))
    return 0


def resolve(parsed: ParsedTrain, *, new: bool = True) -> TrainSettings:
    """Return settings that can start, with a number of steps; print notes about them. new: see `check_start`.

    Models at URLs are downloaded for the checks, and stay URLs in the settings.

    From here on the user has accepted every address in the settings: addresses that only an archive names are refused
    before.
    """
    name_words(reaching_texts(parsed.settings))
    for note in parsed.notes:
        say(f"note: {note}")
    if names := ", ".join(secrets_of(parsed.settings)):
        say(f"note: {names}: only the variable's name is recorded; set the same variables to resume or read the run")
    for sentence in missing(parsed.settings.metrics).values():
        say(f"note: {sentence}; the run continues without it, and `slime-events metrics` can write all metrics later")
    models = LocalModels.of(parsed.settings)
    settings, replaced = as_in_slime(models.settings) if new else (models.settings, [])
    for sentence in replaced:
        say(f"note: {sentence}")
    require_paths(settings)
    settings = check_start(settings, new=new)
    if settings.engine.device != parsed.settings.engine.device:
        say(f"note: device is {settings.engine.device}: {Needs.of(settings)} (--device cpu for the CPU).")
    cores, on_gpu = len(os.sched_getaffinity(0)), settings.engine.device == "cuda"
    for sentence in (
        (*_gpu_notes(settings), *_saving(settings)) if on_gpu else (*idle_on_cpu(settings), *crowded(settings, cores))
    ):
        say(f"note: {sentence}")
    settings, counted = resolve_epochs(settings)
    if counted:
        say(f"note: {counted}")
    return models.recorded(settings)


def _gpu_notes(settings: TrainSettings) -> list[str]:
    """Return notes, not errors: kernels that an earlier start compiled are cached, and GPUs differ in memory."""
    end = "; an engine that must compile a kernel fails"
    notes = [f"{what} on this machine: {mend}{end}" for what, mend in find_toolkit().missing()]
    return [*notes, *filter(None, [memory_note(settings)])]


def _saving(settings: TrainSettings) -> list[str]:
    if settings.trainer.save_interval is not None or settings.debug.debug_rollout_only:
        return []
    kept = settings.trainer.keep_checkpoints or GPU_KEPT
    return [
        f"a checkpoint is saved every {GPU_SAVE_INTERVAL} steps, and the newest {kept} are kept: --save-interval N for "
        "another interval, 0 for none"
    ]


def resolve_epochs(settings: TrainSettings) -> tuple[TrainSettings, str | None]:
    """Set `num_rollout = num_epoch * rows // rollout_batch_size`, which is slime's rule, and return a note about it.

    Counts the rows of the prompt data or of the user's data source. Returns settings without num_epoch unchanged.
    Raises DataError, TooManyBadLines, PlugPointError, InvalidValue (less than one step).
    """
    epochs, batch = settings.rollout.num_epoch, settings.rollout.rollout_batch_size
    if epochs is None or settings.rollout.num_rollout is not None:
        return settings, None
    if settings.data.data_source_path:
        rows = source_length(settings.data, ArgsView.of_run(settings))
    else:  # without the chat template, so that counting needs no tokenizer
        rows = len(PromptSource(replace(settings.data, apply_chat_template=False), settings.rollout.rollout_seed))
    steps = epochs * rows // batch
    if steps < 1:
        raise InvalidValue(
            f"num_epoch {epochs} over {rows} rows is less than one step of rollout_batch_size {batch}: lower "
            "rollout_batch_size"
        )
    rollout = replace(settings.rollout, num_rollout=steps, num_epoch=None)
    trainer = settings.trainer
    if trainer.save_interval and trainer.save_epoch is None:
        trainer = replace(trainer, save_epoch=max(1, rows // batch))
    resolved, _ = derive(replace(settings, rollout=rollout, trainer=trainer))
    return resolved, f"num_epoch {epochs} over {rows} rows is num_rollout {steps}."


def run_to_end(
    settings: TrainSettings,
    *,
    resumes: RunRecord | None = None,
    folder: RunFolder | None = None,
    branched: Branched | None = None,
) -> dict[str, Any] | None:
    """Run to the end and return the summary; None if the run was stopped before its last step.

    After any early end the last message says how to continue. resumes: record of the run to resume, in its folder; None
    for a new run. branched: the weight version that a new run begins with, instead of the base checkpoint.
    """
    # Refuse a name in use before heavy imports.
    folder = folder or RunFolder.create(settings.run.runs_dir, settings.run.run, settings.run.file_access)
    announce_recovery(how_to_resume(folder))
    from slime_events.app.launch.run import Launch

    plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
    stopped = f"stopped: all acked events are in the log; {how_to_resume(folder)}"
    try:
        with contextlib.closing(make_view(settings.run.plain, lambda state: waits_for(state, plan))) as view:
            summary = Launch(settings, view, resumes=resumes, folder=folder, branched=branched).run_to_end()
    except KeyboardInterrupt:
        say(stopped)
        return None
    except SlimeEventsError as error:
        if folder.settings.exists() and not isinstance(error, ConfigError):
            say(f"all acked events are in the log; once the cause is fixed, {how_to_resume(folder)}")
        raise
    if int(summary["steps"]) < (settings.rollout.num_rollout or 0):
        say(stopped)
        return None
    return summary


def how_to_resume(folder: RunFolder) -> str:
    """Return a sentence about the commands that continue and show the run."""
    name = folder.named
    return f"`slime-events resume {name}` continues the run, `slime-events show {name}` shows its progress"


def reached(summary: dict[str, Any]) -> str:
    """Return the result of a run in one line."""
    first, last, seconds = summary["reward_first"], summary["reward_last"], summary["seconds"]
    line = f"{summary['steps']} steps, {summary['events']:,} events, {seconds:.0f} s"
    line += f", reward {first:.3f} -> {last:.3f}" if first is not None else ""
    if summary.get("eval_last") is None:
        return line
    failed, made_by = summary.get("eval_last_failed"), summary.get("eval_last_by")
    line += f", eval {summary['eval_last']:.3f}" + (f" (answers by {made_by})" if made_by else "")
    return line + (f" ({failed} samples failed)" if failed else "")


def where(folder: RunFolder, first: int) -> str:
    """Return the run's folder and commands that show its content. first: the run's first step."""
    name = folder.named
    return "\n".join([
        f"the run's files are in {folder.path}: log, archive, weights, process logs, summary.json",
        f"  slime-events console {name}          pages over the run",
        f"  slime-events show {name}             the run, step by step",
        f"  slime-events show {name} --step {first}    the batch and result of a step",
        f"  slime-events show {name} --verify    check that the log folds to the final state of the run",
    ])  # fmt: skip


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)
