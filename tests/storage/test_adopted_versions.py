"""A version that is written in memory and stored later is the version that would have been stored at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import WeightsDamaged
from schemas.weights import WeightsCarrier
from storage.folders.cache import FOLDER
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import is_delta
from storage.weights.memory_place import memory_place
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import WeightStore
from storage.weights.stored_version import read, verify
from tests.storage.test_weights import tensors


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (folder := tmp_path / "base").mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("max_shard_bytes", [2**30, 60])
def test_it_is_the_folder_that_would_have_been_stored(tmp_path: Path, base: Path, max_shard_bytes: int) -> None:
    at_once = WeightStore(str(tmp_path / "a"), base, max_shard_bytes=max_shard_bytes)
    expected = at_once.write(1, tensors(), parent=0)
    store = WeightStore(str(tmp_path / "b"), base, max_shard_bytes=max_shard_bytes)
    memory = store.in_memory(str(tmp_path / "memory"))
    manifest = memory.write(1, tensors(), parent=0)
    assert store.versions() == []
    planned = store.planned(manifest)
    url = store.adopt(memory.folder(1, manifest.digest))
    assert url == planned == store.folder(1, expected.digest)
    assert files_of(Path(url)) == files_of(Path(at_once.folder(1)))
    assert (Path(url) / "config.json").samefile(tmp_path / "b" / "base" / "config.json")
    assert memory.versions() == [1], "the copy in memory stays"
    assert store.adopt(memory.folder(1)) == url
    assert store.manifest(1, manifest.digest) == expected
    assert not list((tmp_path / "b").glob(".v*"))


def test_deltas_are_made_of_adopted_versions(tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path / "w"), deltas=DeltaRule(50))
    memory = store.in_memory(str(tmp_path / "memory"))
    for version in range(3):
        memory.write(version, tensors(version), parent=version - 1 if version else None)
        store.adopt(memory.folder(version))
    assert [is_delta(Path(store.folder(version))) for version in range(3)] == [False, True, True]
    manifest, stored = read(store.folder(2))
    expected = {name: bytes(data) for name, _, _, data in tensors(2)}
    assert {name: bytes(tensor.data) for name, tensor in stored.items()} == expected
    verify(store.folder(2), manifest.digest)


def test_it_is_uploaded_under_the_name_that_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    store = WeightStore("memory://adopted/run")
    memory = store.in_memory(str(tmp_path / "memory"))
    manifest = memory.write(4, tensors(), parent=3)
    planned = store.planned(manifest)
    assert store.planned(manifest) == planned
    assert store.adopt(memory.folder(4)) == planned
    assert verify(planned, manifest.digest).version == 4


def test_only_memory_offers_it_and_a_restarted_trainer_offers_it_again(tmp_path: Path) -> None:
    offering = SharedVersions(f"{tmp_path}", lambda version: True)
    store = WeightStore(str(tmp_path / "w"), offering=offering)
    memory = store.in_memory(str(tmp_path / "memory"))
    manifest = memory.write(1, tensors(), parent=0)
    assert store.carrier(1, manifest.digest) is WeightsCarrier.SHARED_MEMORY
    store.retire(2)
    store.adopt(memory.folder(1))
    assert store.carrier(1, manifest.digest) is WeightsCarrier.FILES
    memory.offer(memory.folder(1))
    assert store.carrier(1, manifest.digest) is WeightsCarrier.SHARED_MEMORY
    store.retire()


def test_what_is_not_there_has_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(WeightsDamaged, match="version 1 is not in"):
        WeightStore(str(tmp_path)).manifest(1, "d")


def test_each_run_has_a_folder_in_memory(tmp_path: Path) -> None:
    places = {memory_place(run, url, tmp_path) for run in ("a", "b") for url in ("u", "v")}
    assert len(places) == 4
    assert {place.parent for place in places if place} == {tmp_path}
    assert memory_place("a", "u", tmp_path / "missing") is None
