"""`slime-events demo`: a real run with preset settings, which any flag of `train` changes."""

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from schemas.errors import ConfigError, FolderInUse, InvalidValue, SlimeEventsError
from schemas.ids import TRAIN, group_id, sample_id
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.commands.train import INTERRUPTED, resolve, resolve_epochs, run_to_end, say
from slime_events.app.demo.settings import SMOLLM2, demo_settings, prepare_demo, prepare_smollm2, smollm2_settings
from slime_events.app.demo.words import closing_words
from slime_events.app.launch.preflight import check_start
from slime_events.app.launch.run_lock import is_held
from slime_events.app.launch.slime_folders import as_in_slime
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.config.paths import require_paths
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.local_models import LocalModels
from slime_events.core.run.run_folder import RunFolder
from storage.file_access import limited_files
from storage.nats.server import NatsServer
from storage.open_log import unread

TINY = "tiny"
TASKS = {TINY: "digits4", SMOLLM2: "arithmetic"}
"""The demo's models, and the task that each of them learns."""
DEFAULT_RUNS = ("demo", SMOLLM2)
DATA = "data"


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print its result."""
    check_arguments(arguments)
    settings = resolve(prepare(arguments))
    try:
        summary = run_to_end(settings)
    except SlimeEventsError:
        _clear(RunFolder(settings.run.runs_dir, settings.run.run))
        raise
    if summary is None:
        return INTERRUPTED
    facts = {name: value for name, value in summary.items() if value is not None}
    facts |= {f"response_tokens_{end}": facts[f"length_{end}"] for end in ("first", "last") if f"length_{end}" in facts}
    task = TASKS[arguments.model] if is_stock(settings, arguments.model) else None
    facts |= {"task": task, "sample": last_sample(summary["steps"], settings)}
    # As the user types it in this shell: by name if it is on the PATH, else the path of the script (`make demo`).
    command = "slime-events" if shutil.which("slime-events") else os.path.relpath(sys.argv[0])
    say("")
    print(closing_words(facts, command))
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raise InvalidValue or ConfigError for a wrong argument."""
    if arguments.flags and not arguments.flags[0].startswith("-"):
        raise InvalidValue(f"{arguments.flags[0]} is no flag: the demo takes flags only (see --help)")
    if arguments.config is not None:
        raise ConfigError("demo takes no --config: change its settings with flags, or use slime-events train --config.")
    if arguments.model not in TASKS:
        raise InvalidValue(
            f"--model {arguments.model} is unknown: the demo has {' and '.join(TASKS)}."
            f"{did_you_mean(arguments.model, TASKS)}"
        )


def prepare(arguments: argparse.Namespace) -> ParsedTrain:
    """Write the demo's questions and checkpoint, and return its settings with the flags applied.

    Checks the settings in a temporary folder before it removes an earlier demo. Raises ConfigError if the settings
    cannot start or another run has the name, MissingPart if the pretrained model is not installed.
    """
    steps = () if arguments.steps is None else ("--num-rollout", arguments.steps)
    flags, nowhere = (*arguments.flags, *steps), Path(DATA)
    run = with_flags(_stock(arguments.model, nowhere, nowhere), flags).settings.run
    folder = RunFolder(run.runs_dir, run.run)

    def write(data: Path) -> ParsedTrain:
        """Write the demo's questions into `data` and return the settings."""
        tiny = arguments.model == TINY
        return with_flags(prepare_demo(data) if tiny else prepare_smollm2(data, _checkpoint(folder)), flags)

    check_room(folder, force=arguments.force)
    with tempfile.TemporaryDirectory() as elsewhere:
        trial, _ = as_in_slime(LocalModels.of(write(Path(elsewhere)).settings).settings)  # `resolve` says what changes
        require_paths(trial)
        check_start(trial)
        resolve_epochs(trial)
    make_room(folder, force=arguments.force)
    with limited_files(run.file_access):
        return write(folder.path / DATA)


def _stock(model: str, data: Path, checkpoint: Path) -> TrainSettings:
    return demo_settings(data) if model == TINY else smollm2_settings(data, checkpoint)


def _checkpoint(folder: RunFolder) -> Path:
    """Return the folder of the pretrained model, which all runs beside `folder` share."""
    return folder.path.parent / ".models" / SMOLLM2


def with_flags(base: TrainSettings, flags: Sequence[str]) -> ParsedTrain:
    """Apply flags to `base`. Batch sizes are derived again."""
    trainer = replace(base.trainer, global_batch_size=None, num_steps_per_rollout=None)
    text = to_toml(replace(base, trainer=trainer))
    return parse_train(["--config", "the demo's settings", *flags], read=lambda _: text)


def _clear(folder: RunFolder) -> None:
    """Remove the questions of a run that did not start and so has no settings."""
    if not folder.settings.exists():
        shutil.rmtree(folder.path / DATA, ignore_errors=True)
        with contextlib.suppress(OSError):  # the folder is not empty
            folder.path.rmdir()


def check_room(folder: RunFolder, *, force: bool) -> None:
    """Raise ConfigError if the folder holds a run that may not be removed.

    These are another run than a demo, and a demo that is running or being read. Without --force also a demo with a
    name that the user chose, and a demo whose launcher was killed.
    """
    if not folder.settings.exists():
        return
    rename = "choose another name with --run"
    other = f"{rename}, or remove {folder.path}"
    if not _is_demo(folder):
        raise ConfigError(f"{folder.path} holds a run that is not a demo: {other}")
    server = NatsServer.attach(folder.nats)
    if is_held(folder):
        raise ConfigError(f"run {folder.run} is running: wait until it ends, or {rename}")
    try:
        with unread(folder.path):
            pass
    except FolderInUse as error:
        raise ConfigError(f"{error}: wait, or {rename}") from error
    if server is not None and not force:
        raise ConfigError(
            f"run {folder.run} was killed, and its NATS server (process {server.pid}) is still running: continue it "
            f"with `slime-events resume`, replace it with --force, or {other}"
        )
    if not force and folder.run not in DEFAULT_RUNS:
        raise ConfigError(
            f"{folder.path} holds an earlier demo: replace it with --force, or choose another name with --run"
        )


def make_room(folder: RunFolder, *, force: bool) -> None:
    """Remove an earlier demo, and the NATS server that its killed launcher left. Raises as `check_room`."""
    check_room(folder, force=force)
    if not folder.settings.exists():
        return
    say(f"note: replacing the earlier demo in {folder.path}.")
    with unread(folder.path):  # a reader would start the server again while the folder is removed
        if (server := NatsServer.attach(folder.nats)) is not None:
            asyncio.run(server.stop())
        shutil.rmtree(folder.path)


def _is_demo(folder: RunFolder) -> bool:
    """Whether the run's prompts are in the folder that a demo writes them to."""
    try:
        settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    prompts = str(settings.get("data", {}).get("prompt_data", ""))
    return Path(prompts).parent == folder.path / DATA


def is_stock(settings: TrainSettings, model: str) -> bool:
    """Whether no flag changed the task: the questions, the reward, the base checkpoint and the generate function."""
    folder = RunFolder(settings.run.runs_dir, settings.run.run)
    return _task_of(settings) == _task_of(_stock(model, folder.path / DATA, _checkpoint(folder)))


def _task_of(settings: TrainSettings) -> tuple[object, ...]:
    data, reward, rollout = settings.data, settings.reward, settings.rollout
    return (
        settings.engine.hf_checkpoint,
        data.prompt_data,
        reward.rm_type,
        reward.custom_rm_path,
        rollout.custom_generate_function_path,
        settings.evaluation.eval_prompt_data,
    )


def last_sample(steps: int, settings: TrainSettings) -> str | None:
    """Return a sample of the last step; None if prompts are not drawn from the file alone and in its order."""
    data = settings.data
    others = (data.rollout_shuffle, data.archive_prompts, data.data_source_path, settings.debug.load_debug_rollout_data)
    if any(others) or data.prompt_sampler != "file" or not steps:
        return None
    return sample_id(group_id(TRAIN, 0, steps * settings.rollout.rollout_batch_size - 1), 0)
