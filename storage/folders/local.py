"""`LocalFolders`: complete folders below a folder of this host, or of a disk that hosts share."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from storage.folders.folders import Folders


class LocalFolders(Folders):
    """Folders by name. A folder appears by a rename, and disappears by one."""

    def __init__(self, root: Path) -> None:
        self.url, self.work, self._root = str(root), root, root

    def locate(self, name: str) -> str:
        """Return the path of a folder."""
        return str(self._root / name)

    def names(self) -> list[str]:
        """Return the complete folders, the oldest first."""
        times = dict[str, float]()
        for path in self._root.glob("v[0-9]*"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                times[path.name] = path.stat().st_mtime
        return sorted(times, key=lambda name: times[name])

    def is_whole(self, name: str) -> bool:
        """Return whether the folder exists."""
        return (self._root / name).is_dir()

    def publish(self, draft: Path, name: str) -> str:
        """Give a draft in `work` its name. Raises OSError, such as FileExistsError if it is taken."""
        draft.rename(self._root / name)
        return self.locate(name)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Path]:
        """Yield the folder."""
        yield self._root / name

    def remove(self, prefixes: Collection[str]) -> None:
        """Remove all folders whose names begin with one of `prefixes`."""
        for name in (name for name in self.names() if name.startswith(tuple(prefixes))):
            # Renamed first, so that a half-deleted folder is never taken for a complete one.
            gone = (self._root / name).rename(self._root / f".removed-{name}-{secrets.token_hex(4)}")
            shutil.rmtree(gone, ignore_errors=True)
