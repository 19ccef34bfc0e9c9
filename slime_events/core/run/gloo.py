"""One gloo device for all process groups of a process, instead of one each.

Each device has a thread that wakes up a hundred times a second, idle or not. Megatron and SGLang form up to twenty
groups, mostly of the same ranks: their threads would take two percent of a core and interrupt computation two thousand
times a second. gloo lets any number of groups share a device, and so do torch's options, but
`torch.distributed.new_group` does not pass them on.
"""

from __future__ import annotations

import functools
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroupGloo, distributed_c10d


class OneDeviceGloo(ProcessGroupGloo):
    """torch's backend on this process's one device, with the constructor that `torch.distributed` calls."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [_device()]
        options._timeout = timeout
        super().__init__(store, rank, size, options)


@functools.cache
def _device() -> ProcessGroupGloo.Device:
    return ProcessGroupGloo.create_default_device()


def share_gloo_device() -> None:
    """Make `torch.distributed` use it for all later groups. Idempotent."""
    distributed_c10d.ProcessGroupGloo = OneDeviceGloo  # type: ignore[misc]
