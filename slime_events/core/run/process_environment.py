"""Environment variables of processes that hold a model, and the niceness of each role.

The variables are the same for all: digests depend on them.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from schemas.errors import InvalidValue
from schemas.references import expand, references_in
from slime_events.core.config.trainer import TrainerSettings

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(1024**3)}
"""By default glibc returns tensors of 128 KB and more to the system at every free, and allocating them again costs a
page fault for each 4 KB: thousands in one training step, a tenth of its time. The engine inherits it from its replica.
"""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""The split of a sum over threads decides its last bits."""

ON_CUDA = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Of ranks on CUDA, unless the environment has them: Megatron overlaps communication by the order of one queue, and
packed batches of every length leave an allocator of fixed segments in pieces. Both are read when the device is first
used.
"""

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
"""By default gloo and NCCL listen on the address that the machine's name has, though all ranks are on one machine."""

DETERMINISTIC: Mapping[str, tuple[str, ...]] = {
    "NCCL_ALGO": ("Ring", "CollnetDirect", "CollnetChain", "^NVLS"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",),
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
}
"""Of ranks with `--deterministic-mode`: order of sums in collectives, kernels of Transformer Engine, workspaces of
cuBLAS. The first value of each is set where none is, slime's; the others are known to be deterministic too (Megatron's
guide, https://docs.nvidia.com/megatron-core/developer-guide/nightly/user-guide/deterministic-training.html). CUDA reads
them when it starts, so they have to be there before torch is imported. The CPU reads none of them.
"""


def rank_environment(trainer: TrainerSettings, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a process that holds a rank of this trainer needs beside the rest. given: the environment that is there.

    Raises InvalidValue where that has a value which is not deterministic, and `--deterministic-mode` is on.
    """
    if not trainer.deterministic:
        return {}
    chosen = {name: given.get(name, values[0]) for name, values in DETERMINISTIC.items()}
    for name, values in DETERMINISTIC.items():
        # NCCL takes several algorithms, and chooses.
        if not set(chosen[name].split(",") if name == "NCCL_ALGO" else [chosen[name]]) <= set(values):
            raise InvalidValue(
                f"the environment has {name}={chosen[name]}, which is not known to be deterministic: unset it, or use "
                f"one of {', '.join(values)}"
            )
    return chosen


def rank_variables(trainer: TrainerSettings, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All that such a process gets beside the rest: the user's own (`--train-env-vars`) but secrets, and
    `rank_environment`. Raises as that does.
    """
    own = {name: value for name, value in trainer.train_env_vars.items() if not references_in(value)}
    return own | rank_environment(trainer, {**given, **own})


def rank_secrets(trainer: TrainerSettings) -> dict[str, str]:
    """The secrets among `--train-env-vars`, which a process sets for itself: Ray writes what it is given into its logs.

    Raises InvalidValue where one is not set here.
    """
    return {name: expand(value) for name, value in trainer.train_env_vars.items() if references_in(value)}


GENERATES, TRAINS, IN_NO_HURRY, IF_NOBODY_ELSE = 10, 15, 19, 20
"""Niceness. Deciding, grading or passing on an event takes a millisecond that a whole step waits for; with few cores it
must not queue behind long computation. Where training overlaps generation, generation takes longer. Processes that
nobody waits for come last. The last one is no niceness any more: see `yield_to_others`. What computes on a GPU has no
niceness: its threads there start kernels, and a GPU would wait for them.
"""


def set_for_cuda() -> None:
    """`ON_CUDA`, for the device that this process uses next."""
    for name, value in ON_CUDA.items():
        os.environ.setdefault(name, value)


def listen_on_loopback() -> None:
    """For what torch opens in this process from here on, unless the environment names an interface."""
    for name, interface in LOOPBACK_ONLY.items():
        os.environ.setdefault(name, interface)


def yield_to_others(nice: int) -> None:
    """Give this process at least this niceness; on Linux each of its threads, which have their own there.

    IF_NOBODY_ELSE: only what nobody else wants of a processor, where the system has a class for that (SCHED_IDLE). With
    a niceness alone it keeps a processor for some milliseconds when somebody wakes who is waited for, and it has a part
    of one that trainers fill.
    """
    threads = [int(path.name) for path in Path("/proc/self/task").glob("*")] or [0]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))
            if nice >= IF_NOBODY_ELSE and sys.platform == "linux":
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


@contextlib.contextmanager
def inherited(variables: Mapping[str, str]) -> Iterator[None]:
    """What this process starts within has these variables; its own are afterwards as before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
