"""Weight versions in an object store: the same promises as in a folder, from any host."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from schemas.errors import WeightsDamaged
from storage.folders.cache import FOLDER
from storage.folders.places import local_copy, parent_of
from storage.folders.remote import RemoteFolders, StoredFile
from storage.object_store import ObjectFolder
from storage.weights.files import INDEX
from storage.weights.shards import write_shards
from storage.weights.store import WeightStore
from storage.weights.stored_version import read, trained_tensors, verify
from tests.storage.test_weights import tensors

_numbers = itertools.count()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return f"memory://weights-{next(_numbers)}/run"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def other_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "other-cache"))


@pytest.mark.parametrize("max_shard_bytes", [2**30, 60])
def test_another_host_reads_a_version(
    url: str, base: Path, max_shard_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(url, base, max_shard_bytes=max_shard_bytes)
    manifest = store.write(3, iter(tensors()), parent=2)
    other_host(monkeypatch, tmp_path)
    there = WeightStore(url)
    folder = there.folder(3, manifest.digest)
    assert there.versions() == [3]
    assert there.is_whole(3, manifest.digest)
    assert verify(folder, manifest.digest) == manifest == read(folder)[0]
    assert trained_tensors(folder).keys() == {name for name, *_ in tensors()}
    with local_copy(folder) as local:
        assert (local / INDEX).exists() == (max_shard_bytes == 60)
        assert (local / "config.json").read_text() == "{}"
    with pytest.raises(WeightsDamaged, match="was published"):
        verify(folder, "0" * 64)


def test_a_version_has_the_digest_that_a_folder_has(url: str, tmp_path: Path) -> None:
    local = WeightStore(str(tmp_path / "w")).write(1, tensors(), parent=0)
    assert WeightStore(url).write(1, tensors(), parent=0) == local


def test_a_repetition_changes_nothing(url: str) -> None:
    store = WeightStore(url)
    first = store.write(1, tensors(), parent=0)
    folder = store.folder(1, first.digest)
    assert WeightStore(url).write(1, tensors(), parent=0) == first
    assert WeightStore(url).folder(1) == folder
    assert list(store.root.glob(".v*")) == []


def test_a_replaced_writer_overwrites_nothing(url: str) -> None:
    """Either of two versions with equal weights is the published one; other weights have another name."""
    store, replaced = WeightStore(url), WeightStore(url, max_shard_bytes=60)
    with replaced.draft(1) as draft:
        shards = write_shards(draft, "shard", tensors(), max_bytes=60)
        first = store.write(1, tensors(), parent=0)
        folder = store.folder(1, first.digest)
        assert replaced.complete(draft, 1, shards, 0).digest == first.digest
    other = replaced.write(1, tensors(7), parent=0)
    assert verify(folder, first.digest).digest == first.digest
    assert verify(store.folder(1, other.digest), other.digest) == other
    assert store.folder(1, first.digest) == folder
    store.remove([1])
    assert store.versions() == replaced.versions() == []
    assert ObjectFolder(url).folders() in ([], ["contents"])


def test_ranks_upload_from_their_own_hosts(
    url: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, there, parts = WeightStore(url, base), tmp_path / "there", tensors()
    there.mkdir()
    with store.draft(1) as draft:
        here = write_shards(draft, "rank00000", parts[:2])
        shards = [*here, *write_shards(there, "rank00001", parts[2:])]
        upload = store.upload(1, shards)
        assert upload is not None
        sent = dict[str, StoredFile]()
        for folder, mine in ((draft, shards[:1]), (there, shards[1:])):
            files = {shard.file: upload.files[shard.file] for shard in mine}
            sent |= RemoteFolders(upload.place).upload(upload.name, folder, files)
        assert store.versions() == []
        manifest = store.complete(draft, 1, shards, 0, upload=upload, uploaded=sent)
    assert store.folder(1) == f"{url}/{upload.name}"
    assert store.upload(1, shards) is None, "it is there already"
    other_host(monkeypatch, tmp_path)
    assert verify(WeightStore(url).folder(1), manifest.digest).tensors.keys() == {name for name, *_ in parts}


def test_a_damaged_copy_is_downloaded_again(url: str) -> None:
    store = WeightStore(url)
    manifest = store.write(1, tensors(), parent=0)
    folder = store.folder(1, manifest.digest)
    with local_copy(folder) as local:
        shard = local / "model.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert verify(folder, manifest.digest) == manifest
    with local_copy(folder) as local:
        assert json.loads((local / "manifest.json").read_text())["version"] == 1


def test_a_damaged_object_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = WeightStore(url)
    manifest = store.write(1, tensors(), parent=0)
    folder = store.folder(1, manifest.digest)
    place, name = parent_of(folder)
    objects = ObjectFolder(place)
    objects.replace(f"{name}/model.safetensors", objects.read(f"{name}/model.safetensors")[:-1] + b"?")
    other_host(monkeypatch, tmp_path)
    with pytest.raises(WeightsDamaged, match=f"{name}/model.safetensors"):
        verify(folder, manifest.digest)
    objects.remove(f"{name}/model.safetensors")
    assert not store.is_whole(1, manifest.digest)


def test_a_version_that_is_not_there(url: str) -> None:
    store = WeightStore(url)
    with pytest.raises(WeightsDamaged, match=url):
        store.folder(1)
    assert not store.is_whole(1, "0" * 64)
    with pytest.raises(WeightsDamaged, match="does not exist"):
        read(f"{url}/v000001-abc")
