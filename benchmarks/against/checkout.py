"""`checkout_of`: another commit of this repository in a folder of its own, for as long as it is needed."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import ConfigError

HERE = Path(__file__).resolve().parents[2]
"""This checkout, with what is not committed."""


@contextmanager
def checkout_of(revision: str) -> Iterator[Path]:
    """A worktree of the commit, removed afterwards. Raises ConfigError where there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="slime-events-against-") as temporary:
        folder = Path(temporary, "checkout")
        made = _git("worktree", "add", "--detach", "--force", str(folder), revision)
        if made.returncode:
            raise ConfigError(f"no commit {revision!r} to compare with: {made.stderr.strip()}")
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(HERE), *command], capture_output=True, text=True, check=False)
