"""Share a single gloo device among all process groups of a process.

Each gloo device has a thread that wakes up a hundred times a second, even if nothing is sent. Megatron and SGLang form
up to twenty groups, most of them of the same ranks. Gloo allows any number of groups per device, and so do torch's
options, but `torch.distributed.new_group` does not pass the option on.
"""

import functools
import os
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroupGloo, distributed_c10d


class OneDeviceGloo(ProcessGroupGloo):
    """torch's gloo backend on the shared device, with the constructor that `torch.distributed` calls."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = list(_devices())
        options._timeout = timeout
        super().__init__(store, rank, size, options)


@functools.cache
def _devices() -> tuple[ProcessGroupGloo.Device, ...]:
    """Return devices on the interfaces that torch would use: of the variable, or else of the machine's name."""
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        return tuple(ProcessGroupGloo.create_device(interface=name) for name in names.split(","))
    return (ProcessGroupGloo.create_default_device(),)


def share_gloo_device() -> None:
    """Make `torch.distributed` form its groups on the shared device from now on. Repeated calls are allowed."""
    distributed_c10d.ProcessGroupGloo = OneDeviceGloo  # type: ignore[misc]
