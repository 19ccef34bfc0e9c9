"""A trainer's checkpoint in an object store: complete or absent, and the same state on another host."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.megatron import checkpoint
from schemas.errors import CheckpointMismatch, StoreUnavailable, TrainerError
from slime_events.core.training.save_progress import SaveState
from storage.folders.cache import FOLDER
from storage.folders.places import parent_of
from storage.folders.remote import RemoteFolders
from storage.object_store import ObjectFolder
from tests.megatron.tiny import make_batch

_numbers = itertools.count()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return f"memory://checkpoint-{next(_numbers)}/v000001-a"


def test_another_host_continues_from_it(
    url: str, tiny: Path, tmp_path: Path, trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name = parent_of(url)
    with trainer(tiny) as rank:
        rank.train(make_batch())
        digests = rank.weights_digest(), rank.optimizer_digest()
        rank.begin_checkpoint(url)
        assert rank.finish_checkpoint(wait=True).state is SaveState.SAVED
        end = rank.train(make_batch(1)).optimizer_digest, rank.weights_digest()
        monkeypatch.setenv(FOLDER, str(tmp_path / "another-host"))
        rank.load_checkpoint(url)
        assert (rank.weights_digest(), rank.optimizer_digest()) == digests
        assert (rank.train(make_batch(1)).optimizer_digest, rank.weights_digest()) == end
        rank.save_checkpoint(f"{url}b")
        assert RemoteFolders(place).names() == [name, f"{name}b"]
        assert list((tmp_path / "cache").glob(".work/*/*")) == [], "no draft is left"


def test_a_save_that_is_cut_off_leaves_no_checkpoint(
    url: str, tiny: Path, trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at any upload: the last complete checkpoint is still used, and training goes to another name."""
    place, _ = parent_of(url)
    upload, replace, left = ObjectFolder.upload, ObjectFolder.replace, [0]

    def cut(self: ObjectFolder, *words: Any) -> None:
        if left[0] == 0:
            raise StoreUnavailable("the store is away")
        left[0] -= 1
        (upload if isinstance(words[1], Path) else replace)(self, *words)

    monkeypatch.setattr(checkpoint.CheckpointUpload, "__init__", _impatient)
    with trainer(tiny) as rank:
        rank.save_checkpoint(url)
        digest = rank.weights_digest()
        rank.train(make_batch())
        monkeypatch.setattr(ObjectFolder, "upload", cut)
        monkeypatch.setattr(ObjectFolder, "replace", cut)
        for number in range(10):
            left[0], again = number, f"{url}-{number}"
            if (saved := _save(rank, again)) is None:
                break
            assert "the store is away" in saved
            with pytest.raises(CheckpointMismatch, match="does not exist"):
                rank.load_checkpoint(again)
            assert RemoteFolders(place).names() == [parent_of(url)[1]]
        else:
            pytest.fail("it was never saved")
        assert number >= 3, "of each kind of file, and of the list"
        rank.load_checkpoint(url)
        assert rank.weights_digest() == digest


def test_a_damaged_object_is_refused(
    url: str, tiny: Path, tmp_path: Path, trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with trainer(tiny) as rank:
        rank.save_checkpoint(url)
        objects = ObjectFolder(url)
        name = "__0_0.distcp"
        data = objects.read(name)
        objects.replace(name, data[:-1] + bytes([data[-1] ^ 1]))
        monkeypatch.setenv(FOLDER, str(tmp_path / "another-host"))
        digest = rank.weights_digest()
        with pytest.raises(CheckpointMismatch, match=name):
            rank.load_checkpoint(url)
        assert rank.weights_digest() == digest


def _save(rank: Any, url: str) -> str | None:
    try:
        rank.save_checkpoint(url)
    except TrainerError as error:
        return str(error)
    return None


def _impatient(self: checkpoint.CheckpointUpload, url: str, rank: int) -> None:
    place, self._name = parent_of(url)
    self._folders, self._rank, self.files = RemoteFolders(place, retry_s=0.0), rank, {}
    self.draft = self._folders.work / f".{self._name}"
