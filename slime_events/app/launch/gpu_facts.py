"""`machines`: those that a run would use, and what torch sees on each. Heavy packages are imported in a subprocess."""

import os
import subprocess
import sys
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.core.gpus import Machine, look, this_machine
from slime_events.core.run.own_python import own_path

LOOK_S = 120.0
"""Seconds to import torch and the kernels, from a cold disk too, and for a Ray cluster's answers."""
_PROGRAM = "from slime_events.app.launch.gpu_facts import tell; tell()"


def machines(ray_address: str | None) -> tuple[Machine, ...]:
    """This machine, or the nodes with GPUs of the Ray at `ray_address`. Torch is asked only where there are GPUs.

    Raises InvalidValue where that Ray does not answer.
    """
    if ray_address not in (None, "local"):
        try:
            return _ask("ray", str(ray_address))
        except (OSError, subprocess.SubprocessError) as error:
            raise InvalidValue(f"--ray-address {ray_address}: its GPUs cannot be counted ({_reason(error)})") from error
    here = this_machine()
    if not here.has_gpus:
        return (here,)
    try:
        return _ask("here", msgspec.json.encode(here).decode())
    except (OSError, subprocess.SubprocessError) as error:
        return (replace(here, asked=True, torch=None, said=_reason(error)),)


@lru_cache
def _ask(*words: str) -> tuple[Machine, ...]:
    """What `tell` prints in a process of its own."""
    command = [sys.executable, "-P", "-c", _PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, timeout=LOOK_S, check=True, env=os.environ | own_path())
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=tuple[Machine, ...])


def _reason(error: Exception) -> str:
    said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    return said[-1] if said else str(error)


def tell() -> None:
    """Print the answer to `_ask` as one line: about this machine, or about a Ray cluster at its address."""
    kind, about = sys.argv[1:]
    found = _ray_nodes(about) if kind == "ray" else [look(msgspec.json.decode(about, type=Machine))]
    print("\n" + msgspec.json.encode(found).decode())


def look_at_node(name: str, count: int) -> Machine:
    """The machine on which it is called. count: GPUs by Ray."""
    return look(this_machine(name, count))


def _ray_nodes(address: str) -> list[Machine]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A task that takes no GPU sees all GPUs of its node, also those in use.
    environment = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    task, answers = ray.remote(num_cpus=0, max_retries=0)(look_at_node), []
    for node in ray.nodes():
        if node["Alive"] and (count := int(node["Resources"].get("GPU", 0))):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answers.append(task.options(scheduling_strategy=there).remote(node["NodeManagerAddress"], count))
    found: list[Machine] = ray.get(answers, timeout=LOOK_S / 2)
    return found or [Machine(ray=0)]
