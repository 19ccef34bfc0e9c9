"""Files on any fsspec URL, made with the folders that they lie in."""

from typing import IO

import fsspec

from schemas.errors import DataError, StoreUnavailable
from schemas.references import expand
from storage.object_store import ObjectFolder, store_errors


def open_new(url: str) -> IO[bytes]:
    """A file to write piece by piece. Raises StoreUnavailable, NoSpace."""
    try:
        with store_errors(url):
            files, path = fsspec.core.url_to_fs(expand(url))
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            opened: IO[bytes] = files.open(path, "wb")
    except (FileNotFoundError, FileExistsError) as error:  # a file stands where a folder is to be, or no file may be
        raise StoreUnavailable(f"{url} cannot be made: {error}") from error
    return opened


def write_file(url: str, data: bytes) -> None:
    """A file, whole or not at all. Raises StoreUnavailable, NoSpace."""
    folder, name = _parts(url)
    ObjectFolder(folder).replace(name, data)


def read_file(url: str) -> bytes:
    """A whole file. Raises DataError where there is none, StoreUnavailable."""
    folder, name = _parts(url)
    try:
        return ObjectFolder(folder).read(name)
    except FileNotFoundError:
        raise DataError(f"there is no file {url}") from None


def _parts(url: str) -> tuple[str, str]:
    folder, _, name = url.rpartition("/")
    return folder or ".", name
