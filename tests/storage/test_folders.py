"""Places of complete folders: a disk and an object store keep the same promises."""

from __future__ import annotations

import itertools
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import InvalidValue, StoreUnavailable, WeightsDamaged
from storage.folders import retry
from storage.folders.cache import FOLDER, GB, HostCache
from storage.folders.folders import Folders
from storage.folders.local import LocalFolders
from storage.folders.places import drop_copy, is_remote, local_copy, local_path, open_folders
from storage.folders.remote import RemoteFolders
from storage.folders.retry import retried
from storage.object_store import ObjectFolder

FILES = {"a": b"first", "critic/b": b"second" * 1000, "empty": b""}
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv(GB, raising=False)
    monkeypatch.setattr(retry, "FIRST_S", 0.001)


@pytest.fixture(params=["folder", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kinds = {"folder": f"{tmp_path}/w", "file": f"file://{tmp_path}/w", "memory": f"memory://folders-{next(_numbers)}"}
    return kinds[request.param]


@pytest.fixture
def remote() -> RemoteFolders:
    return RemoteFolders(f"memory://folders-{next(_numbers)}")


def draft(folders: Folders, name: str = ".draft", files: dict[str, bytes] | None = None) -> Path:
    new = folders.work / name
    for file, data in (FILES if files is None else files).items():
        (new / file).parent.mkdir(parents=True, exist_ok=True)
        (new / file).write_bytes(data)
    return new


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_there_with_all_its_files(place: str) -> None:
    folders = open_folders(place)
    assert folders.names() == []
    assert not folders.is_whole("v000001-x")
    url = folders.publish(draft(folders), "v000001-x")
    assert url == folders.locate("v000001-x")
    for again in (folders, open_folders(place)):
        assert again.names() == ["v000001-x"]
        assert again.is_whole("v000001-x")
        with again.open("v000001-x") as folder:
            assert read_files(folder) == FILES
    with local_copy(url) as folder:
        assert read_files(folder) == FILES


def test_the_oldest_is_first_and_a_prefix_removes(place: str) -> None:
    folders = open_folders(place)
    for name in ("v000002-b", "v000001-a", "v000002-a"):
        folders.publish(draft(folders), name)
    assert sorted(folders.names()) == ["v000001-a", "v000002-a", "v000002-b"]
    folders.remove([])
    folders.remove(["v000002-", "v000009-"])
    assert folders.names() == open_folders(place).names() == ["v000001-a"]


def test_paths_and_urls(tmp_path: Path) -> None:
    assert isinstance(open_folders("file:///x"), LocalFolders)
    assert local_path("file:///x") == Path("/x")
    assert is_remote("s3://x")
    assert not is_remote("/x")
    with pytest.raises(InvalidValue):
        local_path("s3://x/v")
    with local_copy(tmp_path) as same:
        assert same == tmp_path
    assert not drop_copy(tmp_path)


def test_an_upload_without_its_contents_is_no_folder(remote: RemoteFolders) -> None:
    """Killed at any point before the last write."""
    new = draft(remote)
    stored = remote.upload("v000001-x", new, {file: file for file in FILES})
    assert remote.names() == []
    with pytest.raises(WeightsDamaged, match="does not exist"), local_copy(remote.locate("v000001-x")):
        pass
    remote.complete("v000001-x", stored)
    assert remote.names() == ["v000001-x"]
    remote.remove(["v000001-"])
    assert remote._objects.folders() in ([], ["contents"])


def test_several_hosts_upload_one_folder(remote: RemoteFolders, tmp_path: Path) -> None:
    other = RemoteFolders(remote.url, HostCache(tmp_path / "other"))
    there = draft(other, files={"shard-1": b"one", "shard-2": b"two"})
    stored = other.upload("v000001-x", there, {"shard-1": "model-1", "shard-2": "model-2"})
    new = draft(remote)
    remote.publish(new, "v000001-x", stored)
    with RemoteFolders(remote.url).open("v000001-x") as folder:
        assert read_files(folder) == FILES | {"model-1": b"one", "model-2": b"two"}


def test_what_this_host_uploads_it_does_not_download(remote: RemoteFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.publish(draft(remote), "v000001-x")
    monkeypatch.setattr(ObjectFolder, "download", pytest.fail)
    with remote.open("v000001-x") as folder:
        assert read_files(folder) == FILES


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"?", lambda data: data[:-1], lambda data: data + b"!"])
def test_a_damaged_object_is_never_loaded(remote: RemoteFolders, damage: Callable[[bytes], bytes]) -> None:
    short = RemoteFolders(remote.url, retry_s=0.01)
    remote.publish(draft(remote), "v000001-x")
    remote.drop("v000001-x")
    short._objects.replace("v000001-x/a", damage(FILES["a"]))
    with pytest.raises((WeightsDamaged, StoreUnavailable)) as error, short.open("v000001-x"):
        pass
    assert short.locate("v000001-x/a") in str(error.value)
    assert short.is_whole("v000001-x") is (len(damage(FILES["a"])) == len(FILES["a"]))
    short._objects.replace("v000001-x/a", FILES["a"])
    with short.open("v000001-x") as folder:
        assert read_files(folder) == FILES


def test_a_damaged_download_is_fetched_again(remote: RemoteFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.publish(draft(remote), "v000001-x")
    remote.drop("v000001-x")
    download, tries = ObjectFolder.download, list[str]()

    def flips_a_bit_once(self: ObjectFolder, name: str, path: Path, size: int) -> str:
        digest = download(self, name, path, size)
        tries.append(name)
        return digest if name != "v000001-x/a" or tries.count(name) > 1 else "0" * 64

    monkeypatch.setattr(ObjectFolder, "download", flips_a_bit_once)
    with remote.open("v000001-x") as folder:
        assert read_files(folder) == FILES
    assert tries.count("v000001-x/a") == 2


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a//b", "a/../../x"])
def test_names_that_lead_out_are_refused(remote: RemoteFolders, name: str) -> None:
    remote.publish(draft(remote), "v000001-x")
    data = remote._objects.read("contents/v000001-x.json")
    remote._objects.replace("contents/v000001-x.json", data.replace(b'"a"', b'"%s"' % name.encode()))
    with pytest.raises(WeightsDamaged, match="not in its folder"), RemoteFolders(remote.url).open("v000001-x"):
        pass
    remote._objects.replace("contents/v000001-x.json", b"{")
    with pytest.raises(WeightsDamaged, match="damaged"), RemoteFolders(remote.url).open("v000001-x"):
        pass


def test_an_object_that_is_gone(remote: RemoteFolders) -> None:
    remote.publish(draft(remote), "v000001-x")
    remote.drop("v000001-x")
    remote._objects.remove("v000001-x/a")
    with pytest.raises(WeightsDamaged, match="gone"), remote.open("v000001-x"):
        pass


def test_a_store_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([StoreUnavailable("s3://x is away"), StoreUnavailable("s3://x is away"), None])

    def call() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "there"

    assert retried(call, "s3://x") == "there"

    def away() -> str:
        raise StoreUnavailable("s3://x is away")

    with pytest.raises(StoreUnavailable) as error:
        retried(away, "s3://x", deadline_s=0.02)
    assert "s3://x" in str(error.value)
    assert socket.gethostname() in str(error.value)


def test_a_draft_that_is_left_is_no_folder(place: str) -> None:
    folders = open_folders(place)
    draft(folders)
    assert folders.names() == []
    shutil.rmtree(folders.work / ".draft")
