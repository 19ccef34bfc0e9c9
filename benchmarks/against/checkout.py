"""`checkout_of`: another commit of this repository in a temporary folder."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import ConfigError

HERE = Path(__file__).resolve().parents[2]
"""This checkout, with uncommitted changes."""


@contextmanager
def checkout_of(revision: str) -> Iterator[Path]:
    """Create a worktree of the commit, and remove it afterwards. Raises ConfigError if there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="slime-events-against-") as temporary:
        folder = Path(temporary, "checkout")
        added = _git("worktree", "add", "--detach", "--force", str(folder), revision)
        if added.returncode:
            raise ConfigError(f"there is no commit {revision!r} to compare with: {added.stderr.strip()}")
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(HERE), *command], capture_output=True, text=True, check=False)
