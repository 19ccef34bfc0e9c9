"""`EngineSettings` to SGLang's start arguments. Only this module decides between CPU and CUDA."""

import difflib
import hashlib
import importlib.util
import json
import os
import runpy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from schemas.doc import doc
from schemas.errors import ConfigError, MissingPart, UnknownFlag
from schemas.redaction import is_secret_setting
from serve_apps.engines.plugin import SWITCH
from serve_apps.engines.shared_memory import SHARE
from slime_events.core.config.engine import EngineSettings, message_tokens
from slime_events.core.machine.cuda_toolkit import find_toolkit
from slime_events.core.machine.gpus import look, this_machine
from slime_events.core.planning.engine_memory import default_share
from slime_events.core.run.process_environment import LOOPBACK_ONLY

Device = Literal["cpu", "cuda"]

SHIMS = Path(__file__).parent / "cpu_shims"
CPU_CACHE_BYTES = 1 << 30
"""Maximum key-value cache of one CPU engine."""
CPU_RUNNING = 128
"""Maximum number of samples that one CPU engine decodes at a time. Others wait inside it."""


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """Arguments and environment to start an engine with."""

    device: Device
    arguments: Annotated[dict[str, Any], doc("SGLang's ServerArgs by name.")]
    environment: Annotated[dict[str, str], doc("Environment variables, added to the caller's.")]
    deterministic: bool


def engine_launch(settings: EngineSettings, version: int = 0, name: str = "") -> EngineLaunch:
    """Return how to start one engine that serves `settings.hf_checkpoint` as weight version `version`.

    `name` identifies this start. An engine that is not deterministic derives its random stream from it.

    Raises UnknownFlag for a name that SGLang's ServerArgs does not have, ConfigError for a checkpoint without config.
    """
    _check_names(settings.sglang)
    device = resolve_device(settings)
    deterministic = settings.deterministic if settings.deterministic is not None else device == "cpu"
    config = _model_config(settings.hf_checkpoint)
    arguments: dict[str, Any] = {
        "model_path": settings.hf_checkpoint,
        "device": device,
        "weight_version": str(version),
        "incremental_streaming_output": True,
        "stream_interval": message_tokens(settings.chunk),
        "enable_deterministic_inference": deterministic,
        "random_seed": 0,
        "log_level": "warning",
        "tp_size": settings.rollout_num_gpus_per_engine if device == "cuda" else 1,
    }
    if device == "cpu":
        arguments |= _cpu_arguments(settings, config)
    else:
        # SGLang would load a float32 checkpoint as float16, but the trainer publishes bfloat16.
        arguments["dtype"] = "bfloat16"
        if (share := default_share(settings)) is not None:
            arguments["mem_fraction_static"] = share
        if settings.takes_turns:
            arguments["enable_memory_saver"] = True
    environment = _environment(device, config, deterministic)
    # Without API keys: this server takes no HTTP requests, and SGLang prints its arguments.
    arguments |= {name: value for name, value in settings.sglang.items() if not is_secret_setting(name)}
    if not deterministic:
        arguments["random_seed"] = _own_seed(arguments["random_seed"], name)
    if device == "cuda" and settings.colocate:
        environment[SHARE] = str(_checked_share(arguments["mem_fraction_static"]))
    return EngineLaunch(device, arguments, environment, deterministic)


def _checked_share(share: object) -> float:
    """Return the share of a GPU. Raises ConfigError unless it is a number between 0 and 1."""
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(f"--sglang-mem-fraction-static {share}: give the share of a GPU's memory, between 0 and 1")
    return float(share)


def _own_seed(seed: object, name: str) -> int:
    """Return a 31-bit seed from the setting and the engine's name.

    Without deterministic inference SGLang ignores the seed of a request, and engines with the same seed would generate
    the same tokens for the samples of a group.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:4], "little") >> 1


def resolve_device(settings: EngineSettings) -> Device:
    """Return the device; `auto` means cuda if the machine has GPUs. Raises ConfigError if they cannot be used."""
    if settings.device != "auto":
        return settings.device
    machine = this_machine()
    if not machine.has_gpus:
        return "cpu"
    if problem := look(machine).problem():
        raise ConfigError(problem)
    return "cuda"


def _cpu_arguments(settings: EngineSettings, config: dict[str, Any]) -> dict[str, Any]:
    running = min(settings.sglang_server_concurrency, CPU_RUNNING)
    context = int(settings.sglang.get("context_length") or config.get("max_position_embeddings", 2048))
    return {
        "dtype": "float32",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "sleep_on_idle": True,  # otherwise it spins on a core that the trainer could use
        "max_running_requests": running,
        "max_total_tokens": min(running * context, max(context, CPU_CACHE_BYTES // _cache_bytes_per_token(config))),
        "mem_fraction_static": 0.3,
    }


def _cache_bytes_per_token(config: dict[str, Any]) -> int:
    """Return the size of one token's keys and values in float32."""
    layers = int(config.get("num_hidden_layers", 1))
    if latent := config.get("kv_lora_rank"):  # one vector for the keys and values of all heads, and the rotated key
        return layers * (int(latent) + int(config.get("qk_rope_head_dim", 0))) * 4
    heads = int(config.get("num_attention_heads", 1))
    dim = int(config.get("head_dim") or int(config.get("hidden_size", 1)) // heads)
    return 2 * layers * int(config.get("num_key_value_heads") or heads) * dim * 4


def _environment(device: Device, config: dict[str, Any], deterministic: bool) -> dict[str, str]:
    skipped = _models_without(tuple(config.get("architectures") or ()))
    environment = {SWITCH: device} | {name: os.environ.get(name, value) for name, value in LOOPBACK_ONLY.items()}
    environment |= {"SGLANG_DISABLED_MODEL_ARCHS": ",".join(skipped)} if skipped else {}
    if device == "cuda":
        return environment | find_toolkit().environment
    path = os.environ.get("PYTHONPATH")
    return environment | {
        "SGLANG_USE_CPU_ENGINE": "1",
        # With one thread a row has the same bits in any batch. Threads that share cores are 25 times slower.
        "OMP_NUM_THREADS": "1" if deterministic else os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        # SGLang would compile the router of these models, for up to a minute at each start.
        **({"TORCHDYNAMO_DISABLE": "1"} if config.get("n_routed_experts") else {}),
        "PYTHONPATH": f"{SHIMS}{os.pathsep}{path}" if path else str(SHIMS),
    }


def _model_config(checkpoint: str) -> dict[str, Any]:
    """Return the checkpoint's config.json; empty for a name that is not a local folder (a hub id)."""
    folder = Path(checkpoint)
    if not checkpoint:
        raise ConfigError("hf_checkpoint is empty: set the HF folder that engines start from")
    if not folder.is_dir():
        return {}
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / 'config.json'} cannot be read ({error}): give --hf-checkpoint the folder of a whole checkpoint"
        ) from error
    return config


@lru_cache(maxsize=1)
def _sglang_folder() -> Path:
    """Return SGLang's folder without importing SGLang, which takes seconds."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPart("sglang is not installed: pip install sglang==0.5.23")
    return Path(next(iter(spec.submodule_search_locations)))


@lru_cache(maxsize=1)
def server_argument_names() -> frozenset[str]:
    """Return the names of SGLang's ServerArgs."""
    order = runpy.run_path(str(_sglang_folder() / "srt" / "arg_groups" / "field_order.py"))
    return frozenset(order["POSITIONAL_FIELD_ORDER"])


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in server_argument_names():
            near = difflib.get_close_matches(name, server_argument_names(), n=3, cutoff=0.5)
            flags = [f"--sglang-{other.replace('_', '-')}" for other in (name, *near)]
            hint = f"; near: {', '.join(flags[1:])}" if near else ""
            raise UnknownFlag(f"{flags[0]}: SGLang has no such argument{hint}")


@lru_cache(maxsize=8)
def _models_without(architectures: tuple[str, ...]) -> tuple[str, ...]:
    """Return SGLang's model modules that define none of `architectures`: SGLang would import all 200 to find one."""
    modules = {path.stem: path.read_text() for path in (_sglang_folder() / "srt" / "models").glob("*.py")}
    needed = {name for name, text in modules.items() if any(f"class {a}(" in text for a in architectures)}
    return tuple(sorted(modules.keys() - needed)) if needed else ()
