"""`machines`: the machines that a run would use, and the GPUs that torch sees. Imports torch only in a subprocess."""

import os
import subprocess
import sys
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.app.launch.ray_machines import ray_machines
from slime_events.core.machine.gpus import Machine, look, this_machine
from slime_events.core.run.own_python import own_path

LOOK_S = 120.0
"""Seconds to import torch and the kernels, even from a cold disk, and for a Ray cluster to reply."""
ANSWER = b"machines: "
"""Beginning of the answer's line. Ray prints lines of its own, also after it, such as that a node is lost."""
_PROGRAM = "from slime_events.app.launch.gpu_facts import tell; tell()"


def machines(ray_address: str | None) -> tuple[Machine, ...]:
    """Return this machine, or the nodes with GPUs of the Ray at `ray_address`. Uses torch only if there are GPUs.

    Raises InvalidValue if that Ray does not reply.
    """
    if ray_address not in (None, "local"):
        try:
            return _ask("ray", str(ray_address))
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"its GPUs cannot be counted ({_reason(error)}): check that this Ray is running"
            raise InvalidValue(f"--ray-address {ray_address}: {reason}") from error
    here = this_machine()
    if not here.has_gpus:
        return (here,)
    try:
        return _ask("here", msgspec.json.encode(here).decode())
    except (OSError, subprocess.SubprocessError) as error:
        return (replace(here, probed=True, torch=None, torch_error=_reason(error)),)


@lru_cache
def _ask(*words: str) -> tuple[Machine, ...]:
    """Run `tell` in a process, and return its output decoded."""
    command = [sys.executable, "-P", "-c", _PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, timeout=LOOK_S, check=True, env=os.environ | own_path())
    return _answer_in(done.stdout)


def _answer_in(output: bytes) -> tuple[Machine, ...]:
    (answer,) = [line.removeprefix(ANSWER) for line in output.splitlines() if line.startswith(ANSWER)]
    return msgspec.json.decode(answer, type=tuple[Machine, ...])


def _reason(error: Exception) -> str:
    lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(error)


def tell() -> None:
    """Print the reply to `_ask` as a line: this machine, or the nodes of a Ray cluster."""
    kind, about = sys.argv[1:]
    nodes = _ray_nodes(about) if kind == "ray" else [look(msgspec.json.decode(about, type=Machine))]
    print(f"\n{ANSWER.decode()}{msgspec.json.encode(nodes).decode()}")


def look_at_node(name: str, count: int) -> Machine:
    """Look at the machine that runs this function. count: GPUs that Ray counts there."""
    return look(this_machine(name, count))


def _ray_nodes(address: str) -> list[Machine]:
    import ray

    # A task that takes no GPU sees all GPUs of its node, also those in use.
    environment = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    task = ray.remote(num_cpus=0, max_retries=0)(look_at_node)
    calls = [
        task.options(**machine.only).remote(machine.address, machine.gpus) for machine in ray_machines() if machine.gpus
    ]
    nodes: list[Machine] = ray.get(calls, timeout=LOOK_S / 2)
    return nodes or [Machine(ray=0)]
