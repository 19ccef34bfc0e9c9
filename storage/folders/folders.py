"""`Folders`: where complete folders live, such as weight versions and checkpoints: on a disk or in an object store."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Protocol


class Folders(Protocol):
    """Folders by name. A folder appears with all its files or not at all, and never changes.

    Every method may raise StoreUnavailable if the folders are in an object store.
    """

    url: str
    work: Path
    """Folder of this host for drafts."""

    def locate(self, name: str) -> str:
        """Return the path or URL of a folder, for events and messages."""
        ...

    def names(self) -> list[str]:
        """Return the complete folders, the oldest first."""
        ...

    def is_whole(self, name: str) -> bool:
        """Return whether the folder exists with all its files."""
        ...

    def publish(self, draft: Path, name: str) -> str:
        """Make a draft, a folder in `work`, a complete folder; return its path or URL. The draft may be moved."""
        ...

    def open(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Yield the folder on this host, where it stays while inside."""
        ...

    def remove(self, prefixes: Collection[str]) -> None:
        """Remove all folders whose names begin with one of `prefixes`."""
        ...
