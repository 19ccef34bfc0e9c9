"""What processes that hold a model inherit, whoever starts them: the same for all, since digests depend on it. And who
yields the processor to whom.
"""

from __future__ import annotations

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(1024**3)}
"""glibc gives tensors of 128 KB and more back at every free, and taking them anew costs a page fault for each 4 KB:
thousands in one training step, a tenth of its time. The engine inherits this from its replica."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""How sums are split over threads decides their last bits."""

COMPUTES, IN_NO_HURRY = 15, 19
"""Niceness: of processes that compute for long, and of those that nobody waits for. Who decides, grades or hands on an
event takes a millisecond that a whole step waits for, and on few cores must not queue behind either.
"""
