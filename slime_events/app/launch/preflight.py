"""`check_start`: checks of settings that take a moment, before anything of a run exists.

Each plug point is imported and its signature compared with how it is called, the first rows of each data file are
read, the archive is opened and asked, folders are tried, and servers are called. What only the real parts can tell,
such as whether a model fits into memory, ends the run later.
"""

import asyncio
import inspect
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
from msgspec.structs import replace

from schemas.errors import ConfigError, DataError, InvalidValue, PlugPointError, SlimeEventsError
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.loader import check_call, load_function

Check = Callable[[], None]
KNOCK_S = 2.0
"""Seconds in which a server has to take a connection, all its addresses together."""
PORTS = {"nats": 4222, "tls": 4222, "ray": 10001, "http": 80, "https": 443}


def check_start(settings: TrainSettings, *, new: bool = True) -> None:
    """Raises InvalidValue with the flag, what is wrong with it and where. new: not a run that is there and goes on,
    whose folder and archive are its own, and whose servers may be away for a while.
    """
    _try(_checks(settings, new=new))


def check_learner(settings: TrainSettings) -> None:
    """`check_start` for a new learner, which makes no rollouts. A missing model is found in its parent's weights."""
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
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip(" ^"))
    return message if flag in message else f"{flag}: {message}"


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

    GenerateFunction(path, Path.cwd())


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
    """Draw from the archive once, as the conductor will."""
    from slime_events.analysis.query import samples_where
    from slime_events.loop.conductor.plan import make_plan
    from slime_events.loop.prompts.archived_prompts import archived_prompts

    steps = settings.rollout.num_rollout or 1  # --num-epoch is not counted yet, and of no consequence here
    plan = make_plan(replace(settings.rollout, num_rollout=steps), settings.evaluation, settings.trainer)
    asyncio.run(archived_prompts(settings.data, samples_where, samples=plan.samples, ahead=plan.ahead))


def check_folders(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    """For each folder or store that a new run will write, and each checkpoint that it begins with."""
    run, trainer = settings.run, settings.trainer
    yield "--runs-dir", lambda: _check_writable(run.runs_dir)
    for flag, url in (("--archive-url", run.archive_url), ("--blob-url", run.blob_url), ("--save", trainer.save)):
        if url:
            yield flag, lambda url=url: _check_writable(url)  # type: ignore[misc]
    if run.archive_url:
        yield "--archive-url", lambda: _check_unused(run.archive_url or "", run.run)
    if trainer.load:
        yield "--load", lambda: _check_checkpoint(trainer.load or "")


def check_servers(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    """For each server of somebody else."""
    run, reward = settings.run, settings.reward
    if run.nats_url:
        yield "--nats-url", lambda: _knock(run.nats_url or "")
    if run.ray_address and run.ray_address not in ("auto", "local"):
        yield "--ray-address", lambda: _knock(run.ray_address or "")
    if reward.rm_url and not settings.debug.debug_train_only:
        yield "--rm-url", lambda: _knock(reward.rm_url or "")


def _check_writable(url: str) -> None:
    """A folder of this machine may be there or be made; of a store it is known how to reach it."""
    scheme, _, rest = url.rpartition("://")
    if scheme not in ("", "file"):
        try:
            fsspec.get_filesystem_class(scheme.partition("::")[0])
        except (ImportError, ValueError) as error:
            raise InvalidValue(f"{url} cannot be opened: {error}") from error
        return
    folder = Path(rest).absolute()
    above = next(one for one in (folder, *folder.parents) if one.exists() or one.is_symlink())
    if not above.is_dir():
        raise InvalidValue(f"{url} cannot be a folder: {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InvalidValue(f"{url} cannot be written: {above} belongs to somebody else")


def _check_unused(url: str, run: str) -> None:
    """Otherwise the run would append to the archive of another run of that name."""
    from storage.archive.reader import ArchiveReader

    if last := ArchiveReader(url, run).last:
        raise InvalidValue(
            f"{url}/{run} holds the archive of a run of that name, to position {last}: choose another name with --run"
        )


def _check_checkpoint(folder: str) -> None:
    path = Path(folder)
    if not (path / "trainer.json").is_file() and not (path / "config.json").is_file():
        there = "is not there" if not path.exists() else "is neither a trainer checkpoint nor a Hugging Face folder"
        raise InvalidValue(f"--load {folder} {there}: give one of <run>/checkpoints, or the folder of a model")


def _knock(urls: str) -> None:
    """One address of those with commas has to take a connection."""
    addresses = [_address(url.strip()) for url in urls.split(",")]
    reasons = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=KNOCK_S / len(addresses)).close()
        except OSError as error:
            reasons.append(f"{host}:{port} {error.strerror or error}")
        else:
            return
    raise InvalidValue(f"nobody answers at {urls} ({', '.join(reasons)}): start that server, or mend the address")


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    except ValueError as error:
        raise InvalidValue(f"{url} is no address: {error}") from error
    if not host or not port:
        raise InvalidValue(f"{url} is no address: give host:port")
    return host, port
