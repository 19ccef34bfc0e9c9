"""Facts about any process of this machine, by its id."""

from pathlib import Path


def runs(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    return (_status(pid) or "Z")[0] not in "ZX"


def parent_of(pid: int) -> int:
    """Return the id of its parent; 0 if there is no such process."""
    status = _status(pid)
    return int(status.split()[1]) if status else 0


def _status(pid: int) -> str:
    """Return the fields of the process's status after its name; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].strip()
    except OSError:
        return ""
