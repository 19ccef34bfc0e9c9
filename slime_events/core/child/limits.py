"""`limit`: limits of the machine's resources, which a process sets for itself and its children.

They are no sandbox. They keep a bad sample or grammar from taking the machine down.
"""

import resource

OPEN_FILES = 4096


def limit(memory_gb: float) -> None:
    """Limit this process and its children. `memory_gb` is in 10^9 bytes; 0 means no limit.

    Only private writable memory counts: the address space that CUDA reserves does not.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    if memory_gb:
        _lower(resource.RLIMIT_DATA, int(memory_gb * 1e9))


def _lower(which: int, most: int) -> None:
    soft, _ = resource.getrlimit(which)
    most = most if soft == resource.RLIM_INFINITY else min(soft, most)
    resource.setrlimit(which, (most, most))
