"""Files on any fsspec URL. Missing folders are created."""

from typing import IO

import fsspec

from schemas.errors import DataError, StoreUnavailable
from schemas.references import expand
from storage.object_store import ObjectFolder, store_errors


def open_new(url: str) -> IO[bytes]:
    """Open a new file for writing in parts. Raises StoreUnavailable, NoSpace."""
    try:
        with store_errors(url):
            files, path = fsspec.core.url_to_fs(expand(url))
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            opened: IO[bytes] = files.open(path, "wb")
    except (FileNotFoundError, FileExistsError) as error:  # a file is in place of a folder, or files are not allowed
        raise StoreUnavailable(f"{url} cannot be created: {error}") from error
    return opened


def write_file(url: str, data: bytes) -> None:
    """Write a file, completely or not at all. Raises StoreUnavailable, NoSpace."""
    folder, name = _parts(url)
    ObjectFolder(folder).replace(name, data)


def read_file(url: str) -> bytes:
    """Read a whole file. Raises DataError if it does not exist, StoreUnavailable."""
    folder, name = _parts(url)
    try:
        return ObjectFolder(folder).read(name)
    except FileNotFoundError:
        raise DataError(f"file {url} does not exist") from None


def _parts(url: str) -> tuple[str, str]:
    folder, _, name = url.rpartition("/")
    return folder or ".", name
