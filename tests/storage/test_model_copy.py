"""Models at URLs: a host downloads them once, and what is not complete is named before that."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import CheckpointMismatch
from storage.folders.cache import FOLDER
from storage.folders.places import parent_of
from storage.object_store import ObjectFolder
from storage.weights import model_copy as module
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import INDEX
from storage.weights.folder_formats import TRACKER, FolderFormat, format_of
from storage.weights.model_copy import model_copy
from storage.weights.store import WeightStore
from tests.storage.test_delta_versions import content, filled, tensors
from tests.storage.test_weights import tensors as some_tensors

_numbers = itertools.count()


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectFolder:
    """A model in two files, uploaded by hand."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    objects = ObjectFolder(f"memory://models-{next(_numbers)}/Qwen3-4B")
    for name, data in content(_model(tmp_path)).items():
        objects.replace(name, data)
    return objects


def _model(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    store = WeightStore(str(tmp_path / "w"), base=tmp_path / "base", durable=False, max_shard_bytes=60)
    store.write(0, some_tensors(), None)
    return Path(store.folder(0))


def test_it_is_downloaded_once(objects: ObjectFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_copy(objects.url) as folder:
        assert content(folder) == content(next((tmp_path / "w").glob("v*")))
        assert format_of(folder) is FolderFormat.HF
    monkeypatch.setattr(ObjectFolder, "download", None)
    with model_copy(f"{objects.url}/") as again:
        assert again == folder


def test_a_model_that_was_changed_is_another_copy(objects: ObjectFolder) -> None:
    with model_copy(objects.url) as first:
        objects.replace("config.json", b'{"a": 1}')
        with model_copy(objects.url) as second:
            assert first != second
            assert (second / "config.json").read_text() == '{"a": 1}'
        assert (first / "config.json").read_text() == "{}"


def test_folders_in_it_are_downloaded(objects: ObjectFolder) -> None:
    objects.replace(TRACKER, b"3")
    objects.replace("iter_0000003/.metadata", b"list")
    with model_copy(objects.url) as folder:
        assert (folder / "iter_0000003" / ".metadata").read_bytes() == b"list"


def _remove_all(objects: ObjectFolder) -> None:
    objects.remove()


def _remove_part(objects: ObjectFolder, start: str) -> None:
    place, name = parent_of(objects.url)
    (part,) = [file for file in ObjectFolder(place).states(name) if file.startswith(start)]
    objects.remove(part)


def _half(objects: ObjectFolder) -> None:
    """The second file and the index are not there yet."""
    objects.remove(INDEX)
    _remove_part(objects, "model-00002-of")


BROKEN: dict[str, tuple[Callable[[ObjectFolder], None], str]] = {
    "nothing": (_remove_all, "does not exist or is empty"),
    "no model": (lambda objects: _keep(objects, {"README.md": b"soon"}), "neither a Hugging Face model nor"),
    "a file of the index": (lambda objects: _remove_part(objects, "model-00001-of"), "lacks model-00001-of"),
    "no index yet": (_half, "lacks model-00002-of"),
    "a damaged index": (lambda objects: objects.replace(INDEX, b"{"), "is damaged"),
    "a file of the index elsewhere": (
        lambda objects: objects.replace(INDEX, json.dumps({"weight_map": {"a": "../../x"}}).encode()),
        "lacks ../../x",
    ),
}


def _keep(objects: ObjectFolder, files: dict[str, bytes]) -> None:
    objects.remove()
    for name, data in files.items():
        objects.replace(name, data)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_complete_is_named(objects: ObjectFolder, name: str, tmp_path: Path) -> None:
    breaks, reason = BROKEN[name]
    breaks(objects)
    with pytest.raises(CheckpointMismatch, match=reason), model_copy(objects.url):
        pass
    assert not list((tmp_path / "cache").glob("[!.]*"))


def test_a_version_of_a_run_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    full = filled(tmp_path / "full", None, versions=3)
    store = WeightStore(f"memory://models-{next(_numbers)}/run", base=tmp_path / "base", deltas=DeltaRule(50))
    for version in range(3):
        store.write(version, tensors(version), version - 1 if version else None)
    for version in (0, 2):
        with model_copy(store.folder(version)) as folder:
            assert content(folder) == content(full.folder(version))
