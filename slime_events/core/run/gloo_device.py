"""One gloo device for all process groups of a process, instead of one each.

Each device has a thread that wakes up a hundred times a second, whether or not anything is sent. Megatron and SGLang
form up to twenty groups, most of them of the same ranks. Gloo lets any number of groups use a device, and torch's
options have it too, but `torch.distributed.new_group` does not pass them on.
"""

import functools
import os
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroupGloo, distributed_c10d


class OneDeviceGloo(ProcessGroupGloo):
    """torch's backend on the device of this process, made as `torch.distributed` makes it."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = list(_devices())
        options._timeout = timeout
        super().__init__(store, rank, size, options)


@functools.cache
def _devices() -> tuple[ProcessGroupGloo.Device, ...]:
    """On the interfaces that torch would take: those of the variable, else the one of the machine's name."""
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        return tuple(ProcessGroupGloo.create_device(interface=name) for name in names.split(","))
    return (ProcessGroupGloo.create_default_device(),)


def share_gloo_device() -> None:
    """Have `torch.distributed` form its groups so, from now on. Any number of calls."""
    distributed_c10d.ProcessGroupGloo = OneDeviceGloo  # type: ignore[misc]
