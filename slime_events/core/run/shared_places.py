"""Folders and stores that each machine of a run must see, and how a process finds out that its machine does.

The launcher leaves a random text in each place that the run writes, and notes the digest of each model that it reads.
"""

import contextlib
import enum
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import CheckpointMismatch, InvalidValue, StorageError
from slime_events.core.config.settings import TrainSettings
from storage.object_store import ObjectFolder
from storage.weights.model_copy import held_model

NAME = "shared"
"""Object with the random text, in the run's folder; elsewhere the run's name follows. A later launch replaces it."""
LATE_S, LOOK_S = 10.0, 0.5
"""Seconds in which a new file must show on other machines (network file systems cache folders), and between looks."""
MOST = 4096


class PlaceKind(enum.StrEnum):
    """Use of a place by a run."""

    WRITTEN = "written"
    READ = "read"
    COPIED = "copied"
    """A model at a URL, of which each machine has a copy in its cache."""


class SharedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A folder or store of a run, as the launcher's machine sees it."""

    flag: Annotated[str, doc("Flag that names it.")]
    url: str
    kind: PlaceKind
    name: Annotated[str, doc("Object to look at, if the place is written.")] = ""
    expected: Annotated[str, doc("Content of that object, digest of a model, or the URL of a copy.")] = ""


def written_urls(settings: TrainSettings, weights: str, blobs: str, checkpoints: str) -> list[tuple[str, str]]:
    """Return the flag and the URL of each place that ranks and engines write or read during a run.

    checkpoints: folder without `--save`. They are written at intervals, epochs, or a client's command.
    """
    run, trainer = settings.run, settings.trainer
    urls = [("--weights-url" if run.weights_url else "--runs-dir", weights), ("--blob-url", blobs)]
    saves = trainer.save_interval or trainer.save_epoch or run.tinker
    return [*urls, ("--save", trainer.save or checkpoints)] if saves else urls


def places_of(settings: TrainSettings, folder: str, urls: Iterable[tuple[str, str]]) -> list[SharedPlace]:
    """Return the places of a run, not yet marked. urls: flag and URL of each written place.

    Written places in the run's folder are one place, the folder itself. A model that is not a local folder is none.
    """
    own = Path(folder)
    written = {
        str(own) if "://" not in url and Path(url).is_relative_to(own) else url: flag for flag, url in reversed([*urls])
    }
    trainer = settings.trainer
    models = {
        "--hf-checkpoint": settings.engine.hf_checkpoint,
        "--ref-load": trainer.ref_load,
        "--opd-teacher-load": trainer.opd_teacher_load,
        "--load": trainer.load,
        "--critic-load": trainer.critic_load,
    }
    read = {
        path: flag
        for flag, path in reversed(models.items())
        if path and "://" not in path and path not in written and Path(path).is_dir()
    }
    names = {url: NAME if url == str(own) else f"{NAME}-{settings.run.run}" for url in written}
    return [
        *(SharedPlace(flag=flag, url=url, kind=PlaceKind.WRITTEN, name=names[url]) for url, flag in written.items()),
        *(SharedPlace(flag=flag, url=path, kind=PlaceKind.READ) for path, flag in read.items()),
    ]


def marked(place: SharedPlace, text: str) -> SharedPlace:
    """Leave `text` in a written place, or take the digest of a model. Raises as `ObjectFolder`."""
    if place.kind is PlaceKind.READ:
        return msgspec.structs.replace(place, expected=model_digest(Path(place.url)))
    ObjectFolder(place.url).replace(place.name, text.encode())
    return msgspec.structs.replace(place, expected=text)


def problem_of(place: SharedPlace, late_s: float = LATE_S) -> str | None:
    """Return why this machine does not see a place as the launcher's does, with what to do; None if it does.

    late_s: seconds to wait for the random text. A copy is made here if there is none.
    """
    if place.kind is PlaceKind.COPIED:
        return _problem_of_copy(place)
    if place.kind is PlaceKind.READ:
        path = Path(place.url)
        if not path.is_dir():
            return f"{place.flag} {place.url} does not exist there: copy it there, or put it on a disk that all share"
        if model_digest(path) != place.expected:
            return f"{place.flag} {place.url} is another model there: copy it there, or put it on a disk that all share"
        return None
    until, reason = time.monotonic() + late_s, ""
    while True:
        with contextlib.suppress(FileNotFoundError):
            try:
                if ObjectFolder(place.url).read(place.name, MOST) == place.expected.encode():
                    return None
            except StorageError as error:
                reason = f" ({error})"
        if time.monotonic() >= until:
            return f"{place.flag} {place.url} is not shared{reason}: use a disk or a store that all machines see"
        time.sleep(LOOK_S)


def _problem_of_copy(place: SharedPlace) -> str | None:
    try:
        path = str(held_model(place.expected))
    except (CheckpointMismatch, StorageError) as error:
        return f"{place.flag}: {error}"
    if path != place.url:
        return (
            f"{place.flag} {place.expected} is at {path} there, but at {place.url} on the launcher's machine: it was "
            "changed meanwhile, or give --cache-dir a folder that each machine has"
        )
    return None


def require_places(places: Iterable[SharedPlace]) -> None:
    """Raise InvalidValue if this machine does not see one of the places."""
    for place in places:
        if problem := problem_of(place):
            raise InvalidValue(f"on this machine {problem}")


def model_digest(folder: Path) -> str:
    """Return the sha256 (hex) of a model's config.json and of the names and sizes of its weight files."""
    config = folder / "config.json"
    digest = hashlib.sha256(config.read_bytes() if config.is_file() else b"")
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    return digest.hexdigest()
