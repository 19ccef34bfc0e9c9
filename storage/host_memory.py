"""`available_memory`: the memory of this host that a process can still use."""

from pathlib import Path


def available_memory() -> int:
    """Return the available memory of the machine or of the control group, whichever is less, in bytes.

    Raises ImportError without psutil.
    """
    import psutil  # type: ignore[import-untyped, unused-ignore]

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return available if limit == "max" else min(available, int(limit) - int(used))
