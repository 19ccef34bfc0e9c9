"""`RemoteFolders`: complete folders in an object store, which each host reads through its cache.

    <url>/<name>/...                  the files, each uploaded once
    <url>/contents/<name>.json        their sizes and digests, written last: a folder without it does not exist

A folder never changes. Several hosts may upload their files of one folder; one of them then completes it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.outside_json import read_json
from storage.folders.cache import HostCache
from storage.folders.folders import Folders
from storage.folders.retry import RETRY_S, retried
from storage.object_store import ObjectFolder, file_errors, fsync, is_object_name

T = TypeVar("T")
CONTENTS = "contents"
_AT_ONCE = 4
"""Files that a host transfers at the same time."""
_TRIES = 3
"""Downloads of a file whose bytes do not have their digest."""
_CONTENTS_LIMIT = 64 * 1024**2


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a remote folder."""

    bytes: Annotated[int, doc("its size")]
    sha256: Annotated[str, doc("its digest (hex)")]


class Contents(msgspec.Struct, frozen=True):
    """The files of a complete remote folder."""

    files: Annotated[dict[str, StoredFile], doc("files by name in the folder, such as `critic/common.pt`")]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files.values())


class RemoteFolders(Folders):
    """Folders by name below an fsspec URL. cache: of this host. retry_s: how long to wait for the store.

    Every method may raise StoreUnavailable, with the URL and the node.
    """

    def __init__(self, url: str, cache: HostCache | None = None, *, retry_s: float = RETRY_S) -> None:
        self._objects = ObjectFolder(url)
        self.url, self._retry_s = self._objects.url, retry_s
        self._cache = cache or HostCache.of_environment()
        self.work = self._cache.work(self.url)
        self._contents: dict[str, Contents] = {}

    def locate(self, name: str) -> str:
        """Return the URL of a folder, for events and messages."""
        return self._objects.locate(name)

    def names(self) -> list[str]:
        """Return the complete folders, the oldest first."""
        listed = self._again(partial(self._objects.by_age, CONTENTS))
        return [path.rpartition("/")[2].removesuffix(".json") for path in listed if path.endswith(".json")]

    def contents(self, name: str) -> Contents:
        """Return the files of a folder. Raises FileNotFoundError if it is not complete, WeightsDamaged."""
        if name not in self._contents:
            where = _contents_of(name)
            data = self._again(partial(self._objects.read, where, _CONTENTS_LIMIT))
            try:
                contents = read_json(data, Contents)
            except msgspec.DecodeError as error:
                raise WeightsDamaged(
                    f"{self._objects.locate(where)} is damaged ({error}): restore it from a copy"
                ) from error
            if outside := [file for file in contents.files if not is_object_name(file)]:
                raise WeightsDamaged(f"{self._objects.locate(where)} lists {outside[0]!r}, which is not in its folder")
            self._contents[name] = contents
        return self._contents[name]

    def read(self, name: str, file: str) -> bytes:
        """Return a small file of a complete folder. Raises FileNotFoundError, WeightsDamaged if its bytes differ."""
        stored = self.contents(name).files.get(file)
        if stored is None:
            raise FileNotFoundError(f"{self.locate(name)}/{file}")
        data = self._again(partial(self._objects.read, f"{name}/{file}", _CONTENTS_LIMIT))
        if hashlib.sha256(data).hexdigest() != stored.sha256:
            raise WeightsDamaged(f"{self.locate(name)}/{file} does not have its sha256 {stored.sha256}")
        return data

    def is_whole(self, name: str) -> bool:
        """Return whether the store has all files of a folder in their sizes. Their bytes are checked by `open`."""
        try:
            contents = self.contents(name)
        except FileNotFoundError:
            return False
        there = self._again(partial(self._objects.sizes, name))
        return all(there.get(file) == stored.bytes for file, stored in contents.files.items())

    def upload(self, name: str, folder: Path, files: Mapping[str, str]) -> dict[str, StoredFile]:
        """Upload files of a local folder; return their sizes and digests. files: names in the store by local names.

        The folder does not exist before `complete`.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            stored = pool.map(lambda file: self._upload(f"{name}/{files[file]}", folder / file), files)
            return dict(zip(files.values(), stored, strict=True))

    def complete(self, name: str, files: Mapping[str, StoredFile]) -> str:
        """Make an uploaded folder complete; return its URL."""
        contents = Contents(dict(sorted(files.items())))
        data = msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"
        self._again(partial(self._objects.replace, _contents_of(name), data))
        self._contents[name] = contents
        return self.locate(name)

    def publish(self, draft: Path, name: str, uploaded: Mapping[str, StoredFile] | None = None) -> str:
        """Upload a local folder completely, and keep it as this host's copy; return its URL.

        uploaded: files that are in the store already; the folder may or may not have them.
        """
        before = dict(uploaded or {})
        local = {str(path.relative_to(draft)): path for path in sorted(draft.rglob("*")) if path.is_file()}
        rest = [file for file in local if file not in before]
        url = self.complete(name, before | self.upload(name, draft, dict(zip(rest, rest, strict=True))))
        if local.keys() == (contents := self._contents[name]).files.keys():
            self._cache.adopt(url, draft, contents.bytes)
        return url

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Path]:
        """Yield a copy of a folder on this host, each byte of which was checked when it was downloaded.

        The copy is not removed while inside. Raises FileNotFoundError if the folder does not exist, WeightsDamaged if
        the store has other bytes, NoSpace.
        """
        contents = self.contents(name)
        with self._cache.copy(self.locate(name), contents.bytes, partial(self._fetch, name, contents)) as folder:
            yield folder

    def drop(self, name: str) -> None:
        """Forget this host's copy of a folder."""
        self._contents.pop(name, None)
        self._cache.drop(self.locate(name))

    def remove(self, prefixes: Collection[str]) -> None:
        """Remove all folders whose names begin with one of `prefixes`, complete or not."""
        if not prefixes:
            return
        some = tuple(prefixes)
        # First what makes a folder complete, so that no reader begins to download a half-removed one.
        for name in (name for name in self.names() if name.startswith(some)):
            self._again(partial(self._objects.remove, _contents_of(name)))
        for name in (name for name in self._again(self._objects.folders) if name.startswith(some)):
            self._again(partial(self._objects.remove, name))
            self.drop(name)

    def _upload(self, name: str, path: Path) -> StoredFile:
        with file_errors(str(path)):
            digest = _sha256(path)
        self._again(partial(self._objects.upload, name, path))
        return StoredFile(path.stat().st_size, digest)

    def _fetch(self, name: str, contents: Contents, folder: Path) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda file: self._fetch_file(name, file, contents.files[file], folder), contents.files):
                pass
        for parent in {(folder / file).parent for file in contents.files}:
            fsync(parent)

    def _fetch_file(self, name: str, file: str, stored: StoredFile, folder: Path) -> None:
        path, where = folder / file, f"{name}/{file}"
        for _ in range(_TRIES):
            if self._again(partial(self._download, where, path, stored.bytes)) == stored.sha256:
                return
        raise WeightsDamaged(
            f"{self._objects.locate(where)} does not have its sha256 {stored.sha256}, in {_TRIES} downloads: restore "
            "the object from a copy"
        )

    def _download(self, where: str, path: Path, size: int) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            return self._objects.download(where, path, size)
        except FileNotFoundError as error:
            raise WeightsDamaged(
                f"{self._objects.locate(where)} is gone: its folder was removed, or restore it from a copy"
            ) from error

    def _again(self, call: Callable[[], T]) -> T:
        return retried(call, self.url, self._retry_s)


def _contents_of(name: str) -> str:
    return f"{CONTENTS}/{name}.json"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
