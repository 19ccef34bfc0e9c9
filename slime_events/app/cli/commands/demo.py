"""`slime-events demo`: a real run with everything chosen. Any flag of `train` changes what it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from schemas.errors import ConfigError, InvalidValue, SlimeEventsError
from schemas.ids import TRAIN, group_id, sample_id
from slime_events.app.cli.commands.train import INTERRUPTED, is_interrupted, resolve, run_to_end, say
from slime_events.app.cli.run_arguments import read_words
from slime_events.core.config.flags import ParsedTrain, parse_train
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.config.paths import require_paths
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_folder import RunFolder

TINY, SMOLLM2 = "tiny", "smollm2-135m"
MODELS = (TINY, SMOLLM2)
DEFAULT_RUNS = ("demo", SMOLLM2)
TASKS = {TINY: "digits4", SMOLLM2: "arithmetic"}
DATA = "data"
HELP = """\
usage: slime-events demo [--model tiny|smollm2-135m] [--steps N] [--force] [any flag of slime-events train ...]

A real run: SGLang rollouts, Megatron training, every fact in the log. The tiny model comes with the package and plainly
learns its task; smollm2-135m is a pretrained model, for a few steps.

  --model M        which of the two [tiny]
  --steps N        training steps (--num-rollout)
  --run NAME       name of the run [demo, or smollm2-135m]
  --runs-dir DIR   folder of all runs [slime-runs]
  --max-staleness N  versions a rollout may be behind; 0 is synchronous
  --force          replace an earlier demo of that name (one under the default name is replaced without asking)
"""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The demo's own words; `flags` are for `train`."""

    model: str = TINY
    force: bool = False
    flags: tuple[str, ...] = ()


def main(argv: Sequence[str] = ()) -> int:
    """Run the demo and say what was reached. Errors are raised."""
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(HELP)
        return 0
    options = read_options(argv)
    settings = resolve(prepare(options))
    try:
        summary = run_to_end(settings)
    except SlimeEventsError:
        _clear(RunFolder(settings.run.runs_dir, settings.run.run))
        raise
    if summary is None or is_interrupted(summary, settings):
        return INTERRUPTED
    from slime_events.app.demo.words import closing_words

    say("")
    sys.stdout.write(closing_words(facts(summary, settings, options.model), command()) + "\n")
    return 0


def command() -> str:
    """How this shell reaches us: by name where it is on the path, else by the file that was run (`make demo`)."""
    return "slime-events" if shutil.which("slime-events") else os.path.relpath(sys.argv[0])


def read_options(argv: Sequence[str]) -> DemoOptions:
    """The demo's own words out of the rest. Raises InvalidValue, ConfigError."""
    words = read_words(argv, ("--model", "--steps", "--config"), ("--force",))
    if words.run:
        raise InvalidValue(f"{words.run}: the demo takes flags only (see --help)")
    if "--config" in words.own:
        raise ConfigError("demo has settings of its own: change them by flags, or use slime-events train --config.")
    model = words.own.get("--model", TINY)
    if model not in MODELS:
        raise InvalidValue(f"--model {model}: the demo has {' and '.join(MODELS)}.{did_you_mean(model, MODELS)}")
    steps = ("--num-rollout", words.own["--steps"]) if "--steps" in words.own else ()
    return DemoOptions(model, bool(words.switches), (*words.flags, *steps))


def prepare(options: DemoOptions) -> ParsedTrain:
    """The settings of the demo under the flags, with its questions and its checkpoint in place.

    An earlier demo goes only once these settings have been tried with questions elsewhere. Raises ConfigError where
    they cannot start or another run has the name, MissingPart where the pretrained model is not installed.
    """
    from slime_events.app.cli.epochs import resolve_epochs
    from slime_events.app.demo.settings import demo_settings, smollm2_settings
    from slime_events.app.launch.preflight import check_start

    nowhere = Path(DATA)
    tiny = options.model == TINY
    draft = _with_flags(demo_settings(nowhere) if tiny else smollm2_settings(nowhere, nowhere), options.flags)
    run = draft.settings.run
    folder = RunFolder(run.runs_dir, run.run)
    check_room(folder, force=options.force)
    with tempfile.TemporaryDirectory() as elsewhere:
        trial = _made(options, Path(elsewhere), folder).settings
        require_paths(trial)
        check_start(trial)
        resolve_epochs(trial)
    make_room(folder, force=options.force)
    return _made(options, folder.path / DATA, folder)


def _made(options: DemoOptions, data: Path, folder: RunFolder) -> ParsedTrain:
    """The settings, with the demo's questions written into `data`."""
    from slime_events.app.demo.settings import prepare_demo, prepare_smollm2

    if options.model == TINY:
        return _with_flags(prepare_demo(data), options.flags)
    checkpoint = folder.path.parent / ".models" / SMOLLM2
    return _with_flags(prepare_smollm2(data, checkpoint), options.flags)


def _with_flags(base: TrainSettings, flags: Sequence[str]) -> ParsedTrain:
    """`base` under the flags. The sizes of a batch follow from each other anew."""
    trainer = replace(base.trainer, global_batch_size=None, num_steps_per_rollout=None)
    text = to_toml(replace(base, trainer=trainer))
    return parse_train(["--config", "the demo's settings", *flags], read=lambda _: text)


def _clear(folder: RunFolder) -> None:
    """Of a run that came to nothing, and left no settings: its questions."""
    if not folder.settings.exists():
        shutil.rmtree(folder.path / DATA, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty
            folder.path.rmdir()


def check_room(folder: RunFolder, *, force: bool) -> bool:
    """Whether an earlier demo of the same name is to be removed. Raises ConfigError where it may not go."""
    if not folder.settings.exists():
        return False
    other = f"choose another name with --run, or remove {folder.path}"
    if not _is_demo(folder):
        raise ConfigError(f"{folder.path} holds a run that is no demo: {other}")
    _check_unused(folder, other, force=force)
    if not force and folder.run not in DEFAULT_RUNS:
        raise ConfigError(
            f"{folder.path} holds an earlier demo: --force replaces it, or choose another name with --run"
        )
    return True


def make_room(folder: RunFolder, *, force: bool) -> None:
    """Remove an earlier demo, with the server that a killed launcher of it left. Raises as `check_room`."""
    from storage.nats.server import NatsServer

    if not check_room(folder, force=force):
        return
    say(f"note: the earlier demo in {folder.path} is replaced.")
    if (server := NatsServer.attach(folder.nats)) is not None:
        asyncio.run(server.stop())
    shutil.rmtree(folder.path)


def _is_demo(folder: RunFolder) -> bool:
    """Whether its questions are those that a demo writes into its own folder."""
    try:
        settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    prompts = str(settings.get("data", {}).get("prompt_data", ""))
    return Path(prompts).parent == folder.path / DATA


def _check_unused(folder: RunFolder, other: str, *, force: bool) -> None:
    """Raises ConfigError where the run is on or is read, or where its launcher was killed and nobody forces."""
    from slime_events.app.launch.run_lock import is_held
    from storage.nats.server import NatsServer

    server = NatsServer.attach(folder.nats)
    if is_held(folder):
        raise ConfigError(f"run {folder.run} is on: wait for its end, or {other}")
    if server is None:
        return
    if server.record.temporary:
        raise ConfigError(f"run {folder.run} is being read (NATS server {server.pid}): wait, or {other}")
    if not force:
        raise ConfigError(
            f"run {folder.run} was killed, and its NATS server {server.pid} lives: `slime-events resume` goes on with "
            f"it, --force replaces it, or {other}"
        )


def facts(summary: dict[str, Any], settings: TrainSettings, model: str) -> dict[str, Any]:
    """What the closing words are made from: the summary, without what is not known, and a sample worth a look."""
    known = {name: value for name, value in summary.items() if value is not None}
    lengths = {
        f"response_tokens_{end}": known[f"length_{end}"] for end in ("first", "last") if f"length_{end}" in known
    }
    task = TASKS[model] if is_stock(settings, model) else None
    return known | lengths | {"task": task, "sample": last_sample(summary["steps"], settings)}


def is_stock(settings: TrainSettings, model: str) -> bool:
    """Whether the task is the demo's: its questions, its grading, its base checkpoint and its own way to generate."""
    from slime_events.app.demo.settings import demo_settings, smollm2_settings

    folder = RunFolder(settings.run.runs_dir, settings.run.run).path
    checkpoint = folder.parent / ".models" / SMOLLM2
    stock = demo_settings(folder / DATA) if model == TINY else smollm2_settings(folder / DATA, checkpoint)
    return _task_of(settings) == _task_of(stock)


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
