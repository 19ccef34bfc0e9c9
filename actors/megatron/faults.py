"""Faults of a device or of the ranks' connections, after which a rank's process is of no use: `lost`.

CUDA keeps an error until the process ends, a communicator that was aborted does not come back, and memory that ran out
is in pieces. Another process can go on; see `Restarts`.
"""

import re

import torch
import torch.distributed as dist

from schemas.errors import RankLost
from schemas.text import raised_text

FAULTS = (torch.AcceleratorError, torch.OutOfMemoryError, dist.DistBackendError, dist.DistNetworkError)
_SAID = re.compile(r"\b(CUDA|NCCL|HIP|cuDNN)\b[^.:]{0,40}\b(error|failure)\b|\bC(UBLAS|UDNN)_STATUS_|/gloo/")
"""What other RuntimeErrors of torch say: cuBLAS and cuDNN, and gloo, which names its source."""


def is_fault(error: BaseException) -> bool:
    """Whether an error of a rank is of its device or of its connections to other ranks."""
    return isinstance(error, FAULTS) or (type(error) is RuntimeError and bool(_SAID.search(str(error)[:2000])))


def lost(rank: int, error: BaseException) -> RankLost:
    """The loss of the rank that met such an error."""
    return RankLost(f"rank {rank} met a fault of its device or its connections: {raised_text(error)}")
