"""Environment variables of processes that have a model, and the niceness of each role.

All such processes get the same variables, because digests depend on them.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from schemas.errors import InvalidValue
from schemas.references import expand, references_in
from slime_events.core.config.trainer import TrainerSettings

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(1024**3)}
"""By default glibc returns tensors of 128 KB and more to the system at every free, and allocating them again costs a
page fault for each 4 KB: thousands in a training step, a tenth of its time. The engine inherits it from its replica.
"""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""The number of threads that a sum is split over decides its last bits."""

ON_CUDA = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Variables of ranks on CUDA, unless the environment has them. Both are read at the first use of the device.

Megatron overlaps communication by the order of a single queue. Packed batches of many lengths fragment an allocator
with fixed segments.
"""

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
"""By default gloo and NCCL listen on the address of the machine's name, although all ranks are on the same machine."""

DETERMINISTIC: Mapping[str, tuple[str, ...]] = {
    "NCCL_ALGO": ("Ring", "CollnetDirect", "CollnetChain", "^NVLS"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",),
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
}
"""Variables of ranks with `--deterministic-mode`, with the values that are known to be deterministic.

They fix the order of sums in collectives, kernels of Transformer Engine, and workspaces of cuBLAS. An unset variable
gets its first value, which is slime's. See Megatron's guide,
https://docs.nvidia.com/megatron-core/developer-guide/nightly/user-guide/deterministic-training.html. CUDA reads them at
its start, so they must be set before torch is imported. The CPU ignores them.
"""


def rank_environment(trainer: TrainerSettings, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a process with a rank of this trainer needs in addition to `environment`.

    Raises InvalidValue if deterministic mode is on and the environment has a value that is not deterministic.
    """
    if not trainer.deterministic:
        return {}
    chosen = {name: environment.get(name, values[0]) for name, values in DETERMINISTIC.items()}
    for name, values in DETERMINISTIC.items():
        # NCCL accepts several algorithms, and selects one.
        if not set(chosen[name].split(",") if name == "NCCL_ALGO" else [chosen[name]]) <= set(values):
            raise InvalidValue(
                f"the environment has {name}={chosen[name]}, which is not known to be deterministic: unset it, or use "
                f"one of {', '.join(values)}"
            )
    return chosen


def rank_variables(trainer: TrainerSettings, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of `rank_environment` and of `--train-env-vars` without secrets. Raises InvalidValue."""
    own = {name: value for name, value in trainer.train_env_vars.items() if not references_in(value)}
    return own | rank_environment(trainer, {**environment, **own})


def rank_secrets(trainer: TrainerSettings) -> dict[str, str]:
    """Return the secrets among `--train-env-vars`. A process sets them for itself, because Ray logs its arguments.

    Raises InvalidValue if a secret is not set in this process.
    """
    return {name: expand(value) for name, value in trainer.train_env_vars.items() if references_in(value)}


NICE_GENERATION, NICE_TRAINING, NICE_BACKGROUND, NICE_IDLE = 10, 15, 19, 20
"""Niceness: of generation, of training, of background work, and of work that runs only on an idle processor.

Deciding, grading or passing on an event takes a millisecond that a whole step waits for; with few cores it must not
wait behind long computation. If training overlaps generation, generation is on the critical path. For the last value
see `yield_to_others`. Processes on a GPU have no niceness: their threads start kernels, and a GPU would wait for them.
"""


def set_for_cuda() -> None:
    """Set `ON_CUDA` for the device that this process uses next."""
    for name, value in ON_CUDA.items():
        os.environ.setdefault(name, value)


def yield_to_others(nice: int) -> None:
    """Give this process at least this niceness; on Linux, each of its threads, which have their own niceness.

    NICE_IDLE also selects the scheduling class for idle processors, if the system has it (SCHED_IDLE). A niceness
    alone would keep the processor for some milliseconds when a more urgent process wakes, and would take a share of
    processors that trainers use. A background process that leads its session lowers the session too.
    """
    threads = [int(path.name) for path in Path("/proc/self/task").glob("*")] or [0]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))
            if nice >= NICE_IDLE and sys.platform == "linux":
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    if nice >= NICE_BACKGROUND and os.getsid(0) == os.getpid():
        yield_session(os.getpid())


def yield_session(leader: int) -> None:
    """Let the session of a process run in the background. leader: its process id.

    Where Linux groups processes by session (`sched_autogroup_enabled`, most desktops and bare machines), it divides
    processors among sessions first: the niceness of a process then counts only against others of its own session.
    """
    with contextlib.suppress(OSError):  # a system without the groups, or a process that has ended
        Path(f"/proc/{leader}/autogroup").write_text(str(NICE_BACKGROUND))


@contextlib.contextmanager
def inherited(variables: Mapping[str, str]) -> Iterator[None]:
    """Give processes started in this context the variables, and restore the environment afterwards."""
    with restored(variables):
        os.environ.update(variables)
        yield


@contextlib.contextmanager
def restored(names: Iterable[str]) -> Iterator[None]:
    """Restore these environment variables afterwards, no matter which code changes them in this context."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
