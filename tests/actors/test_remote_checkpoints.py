"""Checkpoints of a trainer in an object store: their names, and which of them is loaded."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from actors.trainer.checkpoints import CheckpointFolders
from schemas.errors import RunNotFound
from schemas.runs import Branched
from slime_events.app.launch.branch_checkpoint import put_branch_checkpoint
from storage.folders.cache import FOLDER
from storage.folders.places import parent_of
from storage.folders.remote import RemoteFolders
from tests import made

_numbers = itertools.count()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointFolders:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return CheckpointFolders(f"memory://checkpoints-{next(_numbers)}")


def save(folders: CheckpointFolders, version: int) -> str:
    """Save a checkpoint of one file, and return its URL."""
    url = folders.new(version)
    place, name = parent_of(url)
    remote = RemoteFolders(place)
    draft = remote.work / f".{name}"
    draft.mkdir(parents=True)
    (draft / "state").write_text(name)
    folders.make_way(version)
    return remote.publish(draft, name)


def test_each_save_has_a_name_of_its_own(folders: CheckpointFolders) -> None:
    """A replaced trainer overwrites nothing, and a recorded checkpoint is found by its URL."""
    assert not folders.has(1)
    first, second = save(folders, 1), save(folders, 1)
    assert first != second
    assert folders.of(1) == second
    saved = made.saved(1, url=first)
    assert folders.find(saved) == first
    assert folders.has(1)
    assert folders.has(1, first)
    assert not folders.has(1, folders.new(1))
    assert not folders.has(2)


def test_all_saves_of_a_version_are_removed(folders: CheckpointFolders) -> None:
    kept = save(folders, 12)
    for version in (1, 1, 2):
        save(folders, version)
    folders.remove([1, 2, 3])
    assert RemoteFolders(folders.root).names() == [parent_of(kept)[1]]


def test_no_url_outside_of_the_root_is_opened(folders: CheckpointFolders, tmp_path: Path) -> None:
    foreign = made.saved(1, url="s3://elsewhere/v000001-abc")
    assert parent_of(folders.find(foreign))[0] == folders.root
    assert CheckpointFolders(str(tmp_path)).find(foreign) == f"{tmp_path}/v000001"
    assert not folders.has(1, foreign.url)
    assert not CheckpointFolders(str(tmp_path)).has(1, foreign.url)


async def test_the_first_checkpoint_of_a_branch_is_made_once(folders: CheckpointFolders) -> None:
    branched = Branched(run="p", where="/gone", position=1, version=3, weights_digest="w", optimizer_digest="o")
    with pytest.raises(RunNotFound):
        await put_branch_checkpoint(branched, made.settings(), folders.root, note=lambda text: None)
    save(folders, 3)
    await put_branch_checkpoint(branched, made.settings(), folders.root, note=pytest.fail)
