"""Environment variables of processes that hold a model, and the niceness of each role.

The variables are the same for all: digests depend on them.
"""

import contextlib
import os
import sys
from pathlib import Path

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(1024**3)}
"""By default glibc returns tensors of 128 KB and more to the system at every free, and allocating them again costs a
page fault for each 4 KB: thousands in one training step, a tenth of its time. The engine inherits it from its replica.
"""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""The split of a sum over threads decides its last bits."""

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
"""By default gloo and NCCL listen on the address that the machine's name has, though all ranks are on one machine."""

GENERATES, TRAINS, IN_NO_HURRY = 10, 15, 19
"""Niceness. Deciding, grading or passing on an event takes a millisecond that a whole step waits for; with few cores it
must not queue behind long computation. Where training overlaps generation, generation takes longer. Processes that
nobody waits for come last.
"""


def listen_on_loopback() -> None:
    """For what torch opens in this process from here on, unless the environment names an interface."""
    for name, interface in LOOPBACK_ONLY.items():
        os.environ.setdefault(name, interface)


def yield_to_others(nice: int) -> None:
    """Give this process at least this niceness; on Linux each of its threads, which have their own there."""
    threads = [int(path.name) for path in Path("/proc/self/task").glob("*")] or [0]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))
