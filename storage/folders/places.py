"""`open_folders` opens a place of complete folders by its URL, and `local_copy` a single folder by its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import InvalidValue, WeightsDamaged
from storage.folders.local import LocalFolders
from storage.folders.remote import RemoteFolders
from storage.folders.retry import RETRY_S


def is_remote(url: str) -> bool:
    """Return whether the URL is in an object store."""
    return "://" in url and not url.startswith("file://")


def local_path(url: str) -> Path:
    """Return the path of a local URL. Raises InvalidValue for a URL in an object store."""
    if is_remote(url):
        raise InvalidValue(f"{url} is not a folder of this host: give a path")
    return Path(url.removeprefix("file://"))


def open_folders(url: str | Path, *, retry_s: float = RETRY_S) -> LocalFolders | RemoteFolders:
    """Open a place. A URL in an object store is read through this host's cache. retry_s: how long to wait for it."""
    where = str(url)
    return RemoteFolders(where, retry_s=retry_s) if is_remote(where) else LocalFolders(local_path(where))


def parent_of(url: str) -> tuple[str, str]:
    """Split the path or URL of a folder into its place and its name."""
    place, _, name = url.rstrip("/").rpartition("/")
    return place, name


@contextlib.contextmanager
def local_copy(url: str | Path, *, retry_s: float = RETRY_S) -> Iterator[Path]:
    """Yield a folder, by its path or URL, on this host. It stays there while inside.

    Raises WeightsDamaged if the store has no such complete folder, or other bytes than were written; StoreUnavailable,
    NoSpace.
    """
    if not is_remote(str(url)):
        yield local_path(str(url))
        return
    place, name = parent_of(str(url))
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(RemoteFolders(place, retry_s=retry_s).open(name))
        except FileNotFoundError:
            raise WeightsDamaged(f"{url} does not exist: it was removed, or its upload was not completed") from None
        yield folder


def drop_copy(url: str | Path) -> bool:
    """Remove this host's copy of a folder that turned out to be damaged; return False if the folder has no copies."""
    if not is_remote(str(url)):
        return False
    place, name = parent_of(str(url))
    RemoteFolders(place).drop(name)
    return True
