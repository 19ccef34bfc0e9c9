"""`check_start`: quick checks of settings, before anything of a run exists.

Imports each plug point and checks its signature, reads the first rows of data files, draws from the archive, and tries
folders and servers. Problems that only appear at run time, such as a model that is too large, end the run later.
"""

import asyncio
import inspect
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from schemas.errors import DataError, ImpossibleCombination, InvalidValue, PlugPointError, SlimeEventsError
from slime_events.algorithms.train_arguments import registered
from slime_events.app.launch.folder_preflight import attempt, check_folders
from slime_events.app.launch.gpu_facts import machines
from slime_events.app.launch.gpu_preflight import check_listed, device_for
from slime_events.app.launch.model_preflight import (
    check_model,
    check_parallelism,
    check_sampling_settings,
    check_served,
    check_teacher,
)
from slime_events.app.launch.plan_preflight import check_memory
from slime_events.core.config.combinations import check_device, impossible
from slime_events.core.config.data import DataSettings
from slime_events.core.config.derivations import on_device
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.machine.gpus import this_machine
from slime_events.core.planning.needs import Needs
from slime_events.core.run.process_environment import rank_secrets, rank_variables
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import check_call, load_function
from slime_events.plugins.step_functions import POINTS, StepFunction
from slime_events.plugins.trainer_points import points_in_use

KNOCK_S = 2.0
"""Seconds in which a server must accept a connection, for all its addresses together."""
FIRST_ROWS = 100
"""Rows of a data file whose metadata is checked for graders. Later rows fail when they are graded."""
PORTS = {"nats": 4222, "tls": 4222, "ray": 10001, "http": 80, "https": 443}


def check_start(settings: TrainSettings, *, new: bool = True) -> TrainSettings:
    """Check the settings, cheap checks first, and return them with the device that the run uses.

    new: whether this is a new run. A resumed run has its own folder and archive, and its servers may be away for a
    while. Raises InvalidValue with the flag, the problem and its place.
    """
    if new:
        check_folders(settings)
    attempt("--hf-checkpoint", check_model, settings)
    attempt("--hf-checkpoint", check_served, settings)
    check_parallelism(settings)
    _check_environment(settings.trainer)
    attempt("--opd-teacher-load", check_teacher, settings.trainer)
    check_sampling_settings(settings)
    _check_plug_points(settings)
    _check_data(settings)
    if settings.run.tinker is not None:
        from serve_apps.http.tinker.actor import check_tinker

        attempt("--tinker", check_tinker, settings.run.tinker)
    if new:
        _check_servers(settings)
    if settings.gateway.listens:
        _check_gateway(settings)
    if settings.agents.agent_command:
        from serve_apps.http.agent_command.actor import check_agent_command

        check_agent_command(settings.agents)
    if settings.data.archive_prompts is not None:
        attempt("--archive-prompts", _check_archive, settings)
    settings = _on_devices(settings)
    if new and settings.engine.rollout_external_engine_addrs and not settings.debug.debug_train_only:
        from slime_events.app.launch.external_preflight import check_external

        check_external(settings)
    if problems := impossible(on_device(settings, settings.engine.device), registered()):  # of the device's defaults
        raise ImpossibleCombination("\n".join(problems))
    if not settings.debug.debug_rollout_only:
        check_device(settings.trainer, cpu=settings.engine.device != "cuda")
    return settings


def _on_devices(settings: TrainSettings) -> TrainSettings:
    engine, address = settings.engine, settings.run.ray_address
    if engine.device == "cpu":
        return settings
    needs = Needs.of(settings)
    if address in (None, "local"):
        check_listed(needs, [this_machine()])
    here = machines(address)
    check_listed(needs, here)
    device = device_for(engine.device, needs, here)
    if device == "cuda":
        check_memory(settings, here)
    return replace(settings, engine=replace(engine, device=device))


def check_learner(settings: TrainSettings) -> None:
    """Check a new learner, which makes no rollouts. A missing model is taken from its parent's weights."""
    check_folders(settings)
    _check_environment(settings.trainer)
    if Path(settings.trainer.hf_checkpoint, "config.json").is_file():
        attempt("--hf-checkpoint", check_model, settings)
        check_parallelism(settings)
        attempt("--opd-teacher-load", check_teacher, settings.trainer)
    _check_filter(settings)
    for point, path in points_in_use(settings):
        attempt(point.flag, point.check, path)


def _check_environment(trainer: TrainerSettings) -> None:
    attempt("--deterministic-mode", rank_variables, trainer)
    attempt("--train-env-vars", rank_secrets, trainer)


def _check_plug_points(settings: TrainSettings) -> None:
    """Check the plug points that this run uses."""
    rollout, reward, data = settings.rollout, settings.reward, settings.data
    if data.data_source_path:
        attempt("--data-source-path", _check_source, data.data_source_path)
    if path := data.buffer_filter_path:
        attempt("--buffer-filter-path", _check_function, path, "(args, None, buffer, num_samples)", 4)
    _check_filter(settings)
    for point, path in points_in_use(settings):
        attempt(point.flag, point.check, path)
    called = {"--rollout-function-path": rollout.rollout_function_path}
    called["--eval-function-path"] = settings.evaluation.own_function
    for flag, path in called.items():
        if path:
            attempt(flag, _check_rollout_function, flag, path)
    if settings.debug.debug_train_only:
        return
    for setting in POINTS:
        if path := getattr(rollout, setting):
            attempt("--" + setting.replace("_", "-"), StepFunction, setting, path)
    if reward.custom_rm_path:
        attempt("--custom-rm-path", _check_reward, reward.custom_rm_path, settings)
    elif reward.rm_type:
        attempt("--rm-type", _check_grader, reward)
    if rollout.custom_generate_function_path:
        attempt("--custom-generate-function-path", _check_generate, rollout.custom_generate_function_path)
    for name, dataset in settings.evaluation.sets().items():
        where = settings.evaluation.where(name)
        if dataset.custom_rm_path:
            attempt(f"{where}: custom_rm_path", _check_reward, dataset.custom_rm_path, settings)
        elif dataset.rm_type and not reward.custom_rm_path:
            attempt(f"{where}: rm_type", _check_grader, replace(reward, rm_type=dataset.rm_type))
        if dataset.custom_generate_function_path:
            attempt(f"{where}: custom_generate_function_path", _check_generate, dataset.custom_generate_function_path)
    for path in rollout.rollout_sample_hook_path:
        attempt("--rollout-sample-hook-path", _check_hook, path)


def _check_filter(settings: TrainSettings) -> None:
    if path := settings.rollout.dynamic_sampling_filter_path:
        attempt("--dynamic-sampling-filter-path", _check_function, path, "(args, samples)", 2)


def _check_function(path: str, arguments: str, count: int) -> None:
    check_call(load_function(path), arguments, count)


def _check_reward(path: str, settings: TrainSettings) -> None:
    from slime_events.plugins.rewards.registry import load_own
    from slime_events.plugins.rewards.reward_model import check_arguments

    of_groups = settings.reward.group_rm
    function, takes = load_own(path, None, Path.cwd()).function, "(args, samples)" if of_groups else "(args, sample)"
    check_call(function, takes, 2, awaits=True)
    check_arguments(function, ArgsView.of_run(settings))


def _check_grader(reward: RewardSettings) -> None:
    from slime_events.plugins.rewards.choice import Place, choose
    from slime_events.plugins.rewards.registry import built_in, check_installed
    from slime_events.plugins.sample import Sample

    choice = choose(reward, Sample())
    if choice.place in (Place.INLINE, Place.POOL):
        built_in(choice.name)
        check_installed(choice.name)


def _check_source(path: str) -> None:
    make = load_function(path)
    check_call(make, "(args)", 1, makes=True)
    if inspect.isclass(make):
        samples = getattr(make, "get_samples", None)
        if not callable(samples):
            raise PlugPointError(f"{path} has no method get_samples(num_samples): a source of prompts needs it")
        check_call(samples, "(self, num_samples)", 2)
        if callable(load := getattr(make, "load", None)):
            check_call(load, "(self, rollout_id)", 2)


def _check_generate(path: str) -> None:
    from serve_apps.rollouts.generate.function import GenerateFunction

    GenerateFunction(path, Path.cwd())


def _check_rollout_function(flag: str, path: str) -> None:
    from serve_apps.rollouts.rollout_function.function import RolloutFunction

    RolloutFunction(flag, path)


def _check_hook(path: str) -> None:
    from serve_apps.rollouts.generate.hooks import SampleHook

    SampleHook(path, Path.cwd())


def _check_data(settings: TrainSettings) -> None:
    from slime_events.loop.prompts.source import check_first_rows, eval_data

    data, evaluation = settings.data, settings.evaluation
    if data.prompt_data and not data.data_source_path:
        attempt("--prompt-data", check_first_rows, data)
        attempt("--prompt-data", _check_row_graders, data, settings)
    for name, dataset in evaluation.sets().items():
        where, rows = evaluation.where(name), eval_data(dataset, data)
        attempt(where, check_first_rows, rows)
        attempt(where, _check_row_graders, rows, settings)
    if settings.debug.load_debug_rollout_data:
        attempt("--load-debug-rollout-data", _check_dump, settings.debug.load_debug_rollout_data)


def _check_row_graders(data: DataSettings, settings: TrainSettings) -> None:
    """Check that the first rows can be graded by the graders that they or the run name."""
    from slime_events.loop.prompts.source import first_rows
    from slime_events.plugins.rewards.registry import metadata_check

    check = metadata_check(settings)
    if settings.debug.debug_train_only or check is None:
        return
    for row in first_rows(data, FIRST_ROWS):
        try:
            check(row.metadata)
        except SlimeEventsError as error:
            raise DataError(f"{data.prompt_data}, line {row.line}: {error}") from error


def _check_dump(pattern: str) -> None:
    try:
        first = Path(pattern.format(rollout_id=0))
    except (KeyError, IndexError, ValueError) as error:
        raise InvalidValue(f"{pattern} is not a path with {{rollout_id}} in it: {error}") from error
    if not first.is_file():
        raise DataError(f"{first} does not exist: give the path of slime's dumps, with {{rollout_id}} for the step")


def _check_archive(settings: TrainSettings) -> None:
    """Draw from the archive once, as the conductor does."""
    from slime_events.analysis.query import samples_where
    from slime_events.loop.conductor.plan import make_plan
    from slime_events.loop.prompts.archived_prompts import archived_prompts

    steps = settings.rollout.num_rollout or 1  # --num-epoch is not resolved yet, and does not matter here
    plan = make_plan(replace(settings.rollout, num_rollout=steps), settings.evaluation, settings.trainer)
    asyncio.run(archived_prompts(settings.data, samples_where, samples=plan.samples, ahead=plan.ahead))


def _check_gateway(settings: TrainSettings) -> None:
    from serve_apps.http.gateway.listening import bound
    from serve_apps.http.gateway.settings import GatewaySettings

    own = GatewaySettings.of_run(settings.gateway)
    for flag, file in ((own.flag("tls-cert"), own.tls_cert), (own.flag("tls-key"), own.tls_key)):
        if file and not os.access(file, os.R_OK):
            raise InvalidValue(f"{flag} {file} cannot be read: give a PEM file")
    bound(own).close()


def _check_servers(settings: TrainSettings) -> None:
    """Check that each external server accepts connections."""
    run = settings.run
    ray = None if run.ray_address in ("auto", "local") else run.ray_address
    grader = None if settings.debug.debug_train_only else settings.reward.rm_url
    for flag, urls in (("--nats-url", run.nats_url), ("--ray-address", ray), ("--rm-url", grader)):
        if urls:
            attempt(flag, _knock, urls)


def _knock(urls: str) -> None:
    """Check that one of the addresses, which commas separate, accepts a connection."""
    addresses = [_address(url.strip()) for url in urls.split(",")]
    reasons = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=KNOCK_S / len(addresses)).close()
        except OSError as error:
            reasons.append(f"{host}:{port} {error.strerror or error}")
        else:
            return
    raise InvalidValue(f"no server replies at {urls} ({', '.join(reasons)}): start it, or correct the address")


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    except ValueError as error:
        raise InvalidValue(f"{url} is not an address: {error}") from error
    if not host or not port:
        raise InvalidValue(f"{url} is not an address: give host:port")
    return host, port
