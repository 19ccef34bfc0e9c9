"""`slime-events demo`: a real run with all settings chosen; any flag of `train` changes them."""

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
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.config.paths import require_paths
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_folder import RunFolder
from storage.file_access import limited_files
from storage.nats.server import NatsServer
from storage.open_log import unread

TINY = "tiny"
TASKS = {TINY: "digits4", SMOLLM2: "arithmetic"}
"""The demo's models, and what each learns."""
DEFAULT_RUNS = ("demo", SMOLLM2)
DATA = "data"


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print what was reached."""
    check_arguments(arguments)
    settings = resolve(prepare(arguments))
    try:
        summary = run_to_end(settings)
    except SlimeEventsError:
        _clear(RunFolder(settings.run.runs_dir, settings.run.run))
        raise
    if summary is None:
        return INTERRUPTED
    known = {name: value for name, value in summary.items() if value is not None}
    known |= {f"response_tokens_{end}": known[f"length_{end}"] for end in ("first", "last") if f"length_{end}" in known}
    task = TASKS[arguments.model] if is_stock(settings, arguments.model) else None
    known |= {"task": task, "sample": last_sample(summary["steps"], settings)}
    # As typed in this shell: by name if it is on the PATH, else the file that was run (`make demo`).
    command = "slime-events" if shutil.which("slime-events") else os.path.relpath(sys.argv[0])
    say("")
    print(closing_words(known, command))
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises InvalidValue, ConfigError."""
    if arguments.flags and not arguments.flags[0].startswith("-"):
        raise InvalidValue(f"{arguments.flags[0]}: the demo takes flags only (see --help)")
    if arguments.config is not None:
        raise ConfigError("demo has settings of its own: change them by flags, or use slime-events train --config.")
    if arguments.model not in TASKS:
        raise InvalidValue(
            f"--model {arguments.model}: the demo has {' and '.join(TASKS)}.{did_you_mean(arguments.model, TASKS)}"
        )


def prepare(arguments: argparse.Namespace) -> ParsedTrain:
    """The settings of the demo under the flags, with its questions and its checkpoint in place.

    An earlier demo is removed only after these settings are checked in a temporary folder. Raises ConfigError where
    they cannot start or another run has the name, MissingPart where the pretrained model is not installed.
    """
    steps = () if arguments.steps is None else ("--num-rollout", arguments.steps)
    flags, nowhere = (*arguments.flags, *steps), Path(DATA)
    run = with_flags(_stock(arguments.model, nowhere, nowhere), flags).settings.run
    folder = RunFolder(run.runs_dir, run.run)

    def made(data: Path) -> ParsedTrain:
        """The settings, with the demo's questions written into `data`."""
        tiny = arguments.model == TINY
        return with_flags(prepare_demo(data) if tiny else prepare_smollm2(data, _checkpoint(folder)), flags)

    check_room(folder, force=arguments.force)
    with tempfile.TemporaryDirectory() as elsewhere:
        trial = made(Path(elsewhere)).settings
        require_paths(trial)
        check_start(trial)
        resolve_epochs(trial)
    make_room(folder, force=arguments.force)
    with limited_files(run.file_access):
        return made(folder.path / DATA)


def _stock(model: str, data: Path, checkpoint: Path) -> TrainSettings:
    return demo_settings(data) if model == TINY else smollm2_settings(data, checkpoint)


def _checkpoint(folder: RunFolder) -> Path:
    """Of the pretrained model, for all runs beside `folder`."""
    return folder.path.parent / ".models" / SMOLLM2


def with_flags(base: TrainSettings, flags: Sequence[str]) -> ParsedTrain:
    """`base` under the flags. Batch sizes are derived again."""
    trainer = replace(base.trainer, global_batch_size=None, num_steps_per_rollout=None)
    text = to_toml(replace(base, trainer=trainer))
    return parse_train(["--config", "the demo's settings", *flags], read=lambda _: text)


def _clear(folder: RunFolder) -> None:
    """Remove the questions of a run that did not start and left no settings."""
    if not folder.settings.exists():
        shutil.rmtree(folder.path / DATA, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty
            folder.path.rmdir()


def check_room(folder: RunFolder, *, force: bool) -> None:
    """Raises ConfigError where the folder holds a run that may not be removed: one that is no demo, that is on or is
    read, or, without --force, one with a name of its own or whose launcher was killed.
    """
    if not folder.settings.exists():
        return
    rename = "choose another name with --run"
    other = f"{rename}, or remove {folder.path}"
    if not _is_demo(folder):
        raise ConfigError(f"{folder.path} holds a run that is no demo: {other}")
    server = NatsServer.attach(folder.nats)
    if is_held(folder):
        raise ConfigError(f"run {folder.run} is on: wait for its end, or {rename}")
    try:
        with unread(folder.path):
            pass
    except FolderInUse as error:
        raise ConfigError(f"{error}: wait, or {rename}") from error
    if server is not None and not force:
        raise ConfigError(
            f"run {folder.run} was killed, and its NATS server {server.pid} lives: `slime-events resume` continues "
            f"it, --force replaces it, or {other}"
        )
    if not force and folder.run not in DEFAULT_RUNS:
        raise ConfigError(
            f"{folder.path} holds an earlier demo: --force replaces it, or choose another name with --run"
        )


def make_room(folder: RunFolder, *, force: bool) -> None:
    """Remove an earlier demo, with the server that a killed launcher of it left. Raises as `check_room`."""
    check_room(folder, force=force)
    if not folder.settings.exists():
        return
    say(f"note: the earlier demo in {folder.path} is replaced.")
    with unread(folder.path):  # a reader would start the server again, in a folder that is going
        if (server := NatsServer.attach(folder.nats)) is not None:
            asyncio.run(server.stop())
        shutil.rmtree(folder.path)


def _is_demo(folder: RunFolder) -> bool:
    """Whether its prompts are in the folder that a demo writes them to."""
    try:
        settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    prompts = str(settings.get("data", {}).get("prompt_data", ""))
    return Path(prompts).parent == folder.path / DATA


def is_stock(settings: TrainSettings, model: str) -> bool:
    """Whether the task is the demo's: its questions, its grading, its base checkpoint and its own way to generate."""
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
    """A sample of the last step, where prompts are drawn in file order and from the file alone."""
    data = settings.data
    others = (data.rollout_shuffle, data.archive_prompts, data.data_source_path, settings.debug.load_debug_rollout_data)
    if any(others) or data.prompt_sampler != "file" or not steps:
        return None
    return sample_id(group_id(TRAIN, 0, steps * settings.rollout.rollout_batch_size - 1), 0)
