"""`held_model`: this host's copy of a model or checkpoint at any fsspec URL, kept while this process lives.

The folder may be one that somebody uploaded by any tool. Then nothing says which files it has, so the listing must
have what its own index and file names promise. A folder that was changed since is another copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from schemas.errors import CheckpointMismatch, StoreUnavailable
from schemas.outside_json import read_json
from storage.folders.cache import HostCache
from storage.folders.places import parent_of
from storage.folders.remote import RemoteFolders
from storage.folders.retry import retried
from storage.object_store import ObjectFolder, ObjectState, fsync, is_object_name
from storage.weights.files import INDEX
from storage.weights.folder_formats import MARK, METADATA, OF_HF, TRACKER
from storage.weights.whole_copies import whole_copy

log = logging.getLogger(__name__)
RETRY_S = 30.0
"""Seconds to wait for the store before a run begins: a wrong address should be named soon."""
_INDEX_BYTES = 64 * 1024**2
_PART = re.compile(r"-(\d{1,6})-of-(\d{1,6})(\.safetensors|\.bin)$")
_held = contextlib.ExitStack()
_copies = dict[str, Path]()


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def held_model(url: str) -> Path:
    """Return a folder of this host with the files at a URL, downloaded once per host. No process removes it meanwhile.

    Raises CheckpointMismatch if the URL has no complete model or checkpoint, WeightsDamaged if its files differ from a
    run's list of them, StoreUnavailable, NoSpace.
    """
    if url not in _copies:
        _copies[url] = _held.enter_context(model_copy(url))
    return _copies[url]


def is_there(url: str) -> bool:
    """Return whether there is anything at a URL. Raises StoreUnavailable."""
    place, name = parent_of(url)
    return _is_of_run(place, name) or bool(retried(partial(ObjectFolder(place).states, name), url, RETRY_S))


@contextlib.contextmanager
def model_copy(url: str) -> Iterator[Path]:
    """Yield the folder, which stays while inside. Raises as `held_model`."""
    place, name = parent_of(url)
    if _is_of_run(place, name):
        with whole_copy(url) as folder:
            yield folder
        return
    states = retried(partial(ObjectFolder(place).states, name), url, RETRY_S)
    objects = ObjectFolder(url)
    _check_complete(url, objects, states)
    text = "\n".join(f"{file} {state.bytes} {state.tag}" for file, state in sorted(states.items()))
    key = f"{place}/{name}@{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    size = sum(state.bytes for state in states.values())
    with HostCache.of_environment().copy(key, size, partial(_fetch, url, objects, states)) as folder:
        yield folder


def _is_of_run(place: str, name: str) -> bool:
    """Return whether a run uploaded the folder, with a list of its files."""
    try:
        RemoteFolders(place, retry_s=RETRY_S).contents(name)
    except FileNotFoundError:
        return False
    return True


def _check_complete(url: str, objects: ObjectFolder, states: Mapping[str, ObjectState]) -> None:
    """Raise CheckpointMismatch if the listing is not that of a model or checkpoint."""
    if not states:
        raise CheckpointMismatch(f"{url} does not exist or is empty: correct the URL")
    if outside := [file for file in states if not is_object_name(file)]:
        raise CheckpointMismatch(f"{url} has an object {outside[0]!r}, which cannot be a file")
    if not states.keys() & {MARK, TRACKER, METADATA, *OF_HF}:
        raise CheckpointMismatch(
            f"{url} holds neither a Hugging Face model nor a checkpoint (no {', '.join(OF_HF)}, {TRACKER} or {MARK})"
        )
    expected = set[str]()
    for match in filter(None, map(_PART.search, states)):
        number, count, end = match.groups()
        stem, most = match.string[: match.start()], min(int(count), len(states) + 1)  # more cannot all be there
        expected |= {f"{stem}-{part:0{len(number)}d}-of-{count}{end}" for part in range(1, most + 1)}
    if INDEX in states:
        try:
            data = retried(partial(objects.read, INDEX, _INDEX_BYTES), url, RETRY_S)
            expected |= set(read_json(data, _Index).weight_map.values())
        except (msgspec.DecodeError, FileNotFoundError) as error:
            raise CheckpointMismatch(f"{url}/{INDEX} is damaged ({error}): upload it again") from error
    if missing := expected - states.keys():
        more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
        raise CheckpointMismatch(f"{url} lacks {min(missing)}{more}: wait for its upload, or complete it")


def _fetch(url: str, objects: ObjectFolder, states: Mapping[str, ObjectState], folder: Path) -> None:
    log.warning("downloading %s, %.1f GB", url, sum(state.bytes for state in states.values()) / 1e9)
    for file, state in states.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        retried(partial(_fetch_file, url, objects, file, path, state.bytes), url, RETRY_S)
        fsync(path.parent)


def _fetch_file(url: str, objects: ObjectFolder, file: str, path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    try:
        objects.download(file, path, size)
    except FileNotFoundError as error:
        raise StoreUnavailable(f"{url}/{file} was removed meanwhile") from error
