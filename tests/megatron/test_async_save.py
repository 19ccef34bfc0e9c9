"""A checkpoint that is written while the rank trains on: of what was there when it began, and whole or not there."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from actors.megatron.checkpoint import is_checkpoint
from schemas.errors import CheckpointMismatch, TrainerError
from slime_events.core.training.save_progress import SaveState
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written until it is set."""
    gate, write = threading.Event(), FileSystemWriter.write_data

    def write_data(self: FileSystemWriter, *args: Any) -> Any:
        assert gate.wait(60)
        return write(self, *args)

    monkeypatch.setattr(FileSystemWriter, "write_data", write_data)
    yield gate
    gate.set()


@pytest.mark.parametrize("kind", [{}, {"bf16": True}, {"megatron": {"use_distributed_optimizer": True}}])
def test_it_holds_what_there_was_when_it_began(
    kind: dict[str, Any], tiny: Path, tmp_path: Path, trainer: Trainer, disk: threading.Event
) -> None:
    folder = tmp_path / "checkpoint"
    with trainer(tiny, **kind) as rank:
        rank.train(make_batch(0))
        before = rank.optimizer_digest()
        rank.begin_checkpoint(folder)
        assert rank.finish_checkpoint(wait=False).state is SaveState.WRITING
        after = rank.train(make_batch(1)).optimizer_digest
        assert not is_checkpoint(folder)
        assert not folder.exists(), "a crash at this point leaves nothing that looks like a checkpoint"
        with pytest.raises(CheckpointMismatch):
            rank.load_checkpoint(folder)
        with pytest.raises(TrainerError):
            rank.begin_checkpoint(tmp_path / "another")
        disk.set()
        assert rank.finish_checkpoint(wait=True).state is SaveState.SAVED
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
        rank.load_checkpoint(folder)
        assert rank.optimizer_digest() == before
        assert rank.train(make_batch(1)).optimizer_digest == after


@pytest.mark.parametrize("part", ["data", "metadata", "name"])
def test_one_that_cannot_be_written_is_given_up_and_the_next_one_is_tried(
    part: str, tiny: Path, tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **more: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder, rename = tmp_path / "checkpoint", os.rename
    with trainer(tiny) as rank:
        with monkeypatch.context() as patched:
            if part == "name":
                patched.setattr(
                    os, "rename", lambda source, other: (full if other == folder else rename)(source, other)
                )
            else:
                patched.setattr(FileSystemWriter, {"data": "write_data", "metadata": "finish"}[part], full)
            rank.begin_checkpoint(folder)
            progress = rank.finish_checkpoint(wait=True)
            assert progress.state is SaveState.FAILED
            assert progress.problem.startswith("rank 0: OSError")
            assert list(tmp_path.iterdir()) == []
            with pytest.raises(TrainerError):
                rank.save_checkpoint(folder)
        rank.begin_checkpoint(folder)
        assert rank.finish_checkpoint(wait=True).state is SaveState.SAVED
        rank.load_checkpoint(folder)


def test_only_one_that_was_begun_can_end(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny) as rank, pytest.raises(TrainerError):
        rank.finish_checkpoint(wait=False)


def test_all_of_it_is_on_disk_before_it_has_its_name(
    tiny: Path, tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync, rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def named(source: Path, target: Path) -> None:
        if target == tmp_path / "checkpoint":
            inside = {path.name.removesuffix(".tmp") for path in synced if path.parent == source}
            assert inside == {path.name for path in source.iterdir()}
            assert synced[-1] == source, "the names in it last"
            synced.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", named)
    with trainer(tiny) as rank:
        rank.begin_checkpoint(tmp_path / "checkpoint")
        assert rank.finish_checkpoint(wait=True).state is SaveState.SAVED
    assert synced == [tmp_path], "its own name too"
