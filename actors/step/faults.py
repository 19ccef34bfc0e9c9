"""Faults of a device or of the ranks' connections, after which a rank's process is unusable: `lost`.

CUDA keeps an error until the process ends, an aborted communicator does not recover, and after an out-of-memory error
the memory is fragmented. A new process can continue; see `Restarts`.
"""

import re

import torch
import torch.distributed as dist

from schemas.errors import RankLost
from schemas.text import raised_text

FAULTS = (torch.AcceleratorError, torch.OutOfMemoryError, dist.DistBackendError, dist.DistNetworkError)
_MESSAGES = re.compile(r"\b(CUDA|NCCL|HIP|cuDNN)\b[^.:]{0,40}\b(error|failure)\b|\bC(UBLAS|UDNN)_STATUS_|/gloo/")
"""Messages of other faults, which torch raises as RuntimeError: cuBLAS, cuDNN, and gloo, which names its source."""


def is_fault(error: BaseException) -> bool:
    """Return whether a rank's device, or its connection to other ranks, caused an error."""
    return isinstance(error, FAULTS) or (type(error) is RuntimeError and bool(_MESSAGES.search(str(error)[:2000])))


def lost(rank: int, error: BaseException) -> RankLost:
    """Return the error that reports the rank as lost."""
    return RankLost(f"rank {rank} had a fault of its device or its connections: {raised_text(error)}")
