"""`check_start`: everything about settings that can be tried in a moment, before anything of a run is there.

Each plug point is imported and its signature compared with how it is called, the first rows of each data file are
read, the archive is opened and asked, folders are tried, and servers are knocked at (`places.py`). What only the real
parts can tell, such as whether a model fits into memory, ends the run later.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from schemas.errors import ConfigError, DataError, InvalidValue, PlugPointError, SlimeEventsError
from slime_events.app.launch.preflight_places import check_folders, check_servers
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.loader import check_call, load_function

Check = Callable[[], None]


def check_start(settings: TrainSettings, *, new: bool = True) -> None:
    """Raises InvalidValue with the flag, what is wrong with it and where. new: not a run that is there and goes on,
    whose folder and archive are its own, and whose servers may be away for a while.
    """
    _try(_checks(settings, new=new))


def check_learner(settings: TrainSettings) -> None:
    """The same of a new learner, which makes no rollouts. A model that is gone is found in its parent's weights."""
    _try(_checks_of_learner(settings))


def _try(checks: Iterable[tuple[str, Check]]) -> None:
    for flag, check in checks:
        try:
            check()
        except ConfigError as error:
            raise type(error)(_one_line(flag, error)) from error
        except SlimeEventsError as error:
            raise InvalidValue(_one_line(flag, error)) from error
        except OSError as error:
            raise InvalidValue(f"{flag}: {error.strerror or error}: {error.filename}") from error


def _one_line(flag: str, error: Exception) -> str:
    said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip(" ^"))
    return said if flag in said else f"{flag}: {said}"


def _checks(settings: TrainSettings, *, new: bool) -> Iterator[tuple[str, Check]]:
    """Cheap ones first."""
    if new:
        yield from check_folders(settings)
    yield "--hf-checkpoint", lambda: _check_model(settings)
    yield from _plug_points(settings)
    yield from _data(settings)
    if new:
        yield from check_servers(settings)
    if settings.data.archive_prompts is not None:
        yield "--archive-prompts", lambda: _check_archive(settings)


def _checks_of_learner(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    yield from check_folders(settings)
    if Path(settings.trainer.hf_checkpoint, "config.json").is_file():
        yield "--hf-checkpoint", lambda: _check_model(settings)
    yield from _filter(settings)


def _check_model(settings: TrainSettings) -> None:
    from actors.megatron.architecture import Architecture

    trainer = settings.trainer
    Architecture.read(trainer.hf_checkpoint).check_flags(trainer.megatron)
    for folder in filter(None, {settings.engine.hf_checkpoint, trainer.hf_checkpoint}):
        files = [path.name for path in Path(folder).iterdir()]
        if not any(name.endswith((".safetensors", ".bin", ".pt", ".gguf")) for name in files):
            raise InvalidValue(f"{folder} holds no weights (*.safetensors): give the folder of a whole checkpoint")
        if not any("token" in name or "vocab" in name for name in files):
            raise InvalidValue(f"{folder} holds no tokenizer (tokenizer.json): give the folder of a whole checkpoint")


def _plug_points(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    """Those that this run will use."""
    rollout, reward, data = settings.rollout, settings.reward, settings.data
    if data.data_source_path:
        yield "--data-source-path", lambda: _check_source(data.data_source_path or "")
    if data.buffer_filter_path:
        yield (
            "--buffer-filter-path",
            lambda: check_call(load_function(data.buffer_filter_path or ""), "(args, None, buffer, num_samples)", 4),
        )
    yield from _filter(settings)
    if settings.debug.debug_train_only:
        return
    if reward.custom_rm_path:
        yield "--custom-rm-path", lambda: _check_reward(settings)
    elif reward.rm_type:
        yield "--rm-type", lambda: _check_grader(settings)
    if rollout.custom_generate_function_path:
        yield "--custom-generate-function-path", lambda: _check_generate(rollout.custom_generate_function_path or "")


def _filter(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    if path := settings.rollout.dynamic_sampling_filter_path:
        yield "--dynamic-sampling-filter-path", lambda: check_call(load_function(path), "(args, samples)", 2)


def _check_reward(settings: TrainSettings) -> None:
    from slime_events.plugins.rewards.dispatch import load_own

    grader = load_own(settings.reward.custom_rm_path or "", None, Path.cwd())
    check_call(grader.function, "(args, samples)" if settings.reward.group_rm else "(args, sample)", 2)


def _check_grader(settings: TrainSettings) -> None:
    from slime_events.plugins.rewards.dispatch import REMOTE, built_in, grader_name
    from slime_events.plugins.sample import Sample

    name = grader_name(settings.reward, Sample())
    if REMOTE not in name:
        built_in(name)


def _check_source(path: str) -> None:
    make = load_function(path)
    check_call(make, "(args)", 1)
    if inspect.isclass(make):
        samples = getattr(make, "get_samples", None)
        if not callable(samples):
            raise PlugPointError(f"{path} has no get_samples(num_samples): a source of prompts is asked for them by it")
        check_call(samples, "(self, num_samples)", 2)


def _check_generate(path: str) -> None:
    from serve_apps.generate.function import GenerateFunction

    GenerateFunction(path, Path.cwd()).check()


def _data(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    from slime_events.loop.prompts.source import check_first_rows, eval_data

    data, evaluation = settings.data, settings.evaluation
    if data.prompt_data and not data.data_source_path:
        yield "--prompt-data", lambda: check_first_rows(data)
    for path in evaluation.eval_prompt_data[1::2]:
        one = eval_data(evaluation, data, path)
        yield "--eval-prompt-data", lambda one=one: check_first_rows(one)  # type: ignore[misc]
    if pattern := settings.debug.load_debug_rollout_data:
        yield "--load-debug-rollout-data", lambda: _check_dump(pattern)


def _check_dump(pattern: str) -> None:
    try:
        first = Path(pattern.format(rollout_id=0))
    except (KeyError, IndexError, ValueError) as error:
        raise InvalidValue(f"{pattern} is no path with {{rollout_id}} in it: {error}") from error
    if not first.is_file():
        raise DataError(f"{first} is not there: give the path of slime's dumps, with {{rollout_id}} for the step")


def _check_archive(settings: TrainSettings) -> None:
    """What the conductor will do with it, once before."""
    from slime_events.analysis.query.where import samples_where
    from slime_events.loop.conductor.plan import make_plan
    from slime_events.loop.prompts.archived_prompts import archived_prompts

    steps = settings.rollout.num_rollout or 1  # --num-epoch is not counted yet, and of no consequence here
    plan = make_plan(replace(settings.rollout, num_rollout=steps), settings.evaluation, settings.trainer)
    asyncio.run(archived_prompts(settings.data, samples_where, samples=plan.samples, ahead=plan.ahead))
