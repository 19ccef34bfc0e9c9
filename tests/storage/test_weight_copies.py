"""A stored version as somebody's own folder: theirs to change, and whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas.errors import StoreUnavailable
from storage.weights import copies
from storage.weights.copies import copy_version
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify


@pytest.fixture
def stored(tmp_path: Path) -> str:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    store = WeightStore(str(tmp_path / "weights"), base=base, durable=False)
    store.write(3, [("w", "F32", (2,), b"\1" * 8)], parent=2)
    return store.folder(3)


def test_tensors_are_shared_and_other_files_are_not(stored: str, tmp_path: Path) -> None:
    copy_version(stored, str(tmp_path / "deep" / "hf"))
    digest = verify(stored).digest
    assert verify(str(tmp_path / "deep" / "hf"), digest).digest == digest
    copied = tmp_path / "deep" / "hf"
    (shard,) = copied.glob("*.safetensors")
    assert os.stat(shard).st_ino == os.stat(Path(stored) / shard.name).st_ino
    (copied / "config.json").write_text("mine")
    verify(stored)
    copy_version(stored, str(copied))
    assert (copied / "config.json").read_text() == "{}", "an older folder is replaced"
    assert [path.name for path in copied.parent.iterdir()] == ["hf"]


def test_without_links_everything_is_copied(stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "another file system")

    monkeypatch.setattr(copies.os, "link", refuse)
    copy_version(stored, str(tmp_path / "hf"))
    (shard,) = (tmp_path / "hf").glob("*.safetensors")
    assert os.stat(shard).st_nlink == 1
    verify(str(tmp_path / "hf"))


def test_a_folder_that_cannot_be_written_is_named(stored: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="file/hf"):
        copy_version(stored, str(tmp_path / "file" / "hf"))
