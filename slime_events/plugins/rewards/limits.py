"""Limits of a grader's process: resources of the machine, and environment variables.

They are no sandbox: a grader is user code, and has the user's permissions. The limits keep a bad sample from taking the
machine down, and secrets out of reach of text that a model wrote.
"""

import resource
from collections.abc import Collection, Mapping

from slime_events.plugins.user_environment import user_environment

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


def environment(variables: Mapping[str, str], keep: Collection[str]) -> dict[str, str]:
    """Return `variables` without secrets, except the names in `keep` (`--rm-env`). Numeric libraries get one thread."""
    return {"OMP_NUM_THREADS": "1", **user_environment(variables, keep)}
