"""What processes that hold a model inherit, whoever starts them: the same for all, since digests depend on it. And who
yields the processor to whom.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(1024**3)}
"""glibc gives tensors of 128 KB and more back at every free, and taking them anew costs a page fault for each 4 KB:
thousands in one training step, a tenth of its time. The engine inherits this from its replica."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""How sums are split over threads decides their last bits."""

GENERATES, TRAINS, IN_NO_HURRY = 10, 15, 19
"""Niceness. Who decides, grades or hands on an event takes a millisecond that a whole step waits for, and on few cores
must not queue behind those that compute for long. Where training overlaps generation, generation is what lasts longer.
Last come those that nobody waits for.
"""


def yield_to_others(nice: int) -> None:
    """Give this process at least that niceness: on Linux all its threads, each of which has one of its own there."""
    threads = [int(path.name) for path in Path("/proc/self/task").glob("*")] or [0]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))
