"""What a grader's process may use of the machine, and what it sees of the environment.

No sandbox: a grader is the user's code, and may do what the user may. The limits keep a bad sample from taking the
machine along, and a secret from being in the reach of text that a model wrote.
"""

import resource
from collections.abc import Collection, Mapping

from slime_events.plugins.user_environment import user_environment

OPEN_FILES = 4096


def limit(memory_gb: float) -> None:
    """For this process, and for each that it starts. memory_gb: in 10^9 bytes; 0 is no limit.

    Memory is private and writable memory: the address space that CUDA reserves does not count.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    if memory_gb:
        _lower(resource.RLIMIT_DATA, int(memory_gb * 1e9))


def _lower(which: int, most: int) -> None:
    soft, _ = resource.getrlimit(which)
    most = most if soft == resource.RLIM_INFINITY else min(soft, most)
    resource.setrlimit(which, (most, most))


def environment(given: Mapping[str, str], passed: Collection[str]) -> dict[str, str]:
    """`given` without secrets, but with the names in `passed` (`--rm-env`); one thread for each numeric library."""
    return {"OMP_NUM_THREADS": "1", **user_environment(given, passed)}
