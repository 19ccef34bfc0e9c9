"""A rank reads its part of a checkpoint's tensors and nothing else, with the values of torch's own reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.state_dict_saver import save

from actors.megatron import checkpoint_reader
from actors.megatron.checkpoint_reader import PartReader
from schemas.errors import CheckpointMismatch
from storage.weights.file_runs import Box
from tests.megatron.tiny import make_batch

STATE = {
    "whole": torch.randn(6, 4, 3),
    "half": torch.randn(5, 7).bfloat16(),
    "turned": torch.randn(4, 6).t(),
    "count": torch.tensor(7.0),
    "empty": torch.zeros(0, 3),
}
PARTS = [
    ("whole", Box((0, 0, 0), (6, 4, 3))),
    ("whole", Box((3, 0, 0), (6, 4, 3))),
    ("whole", Box((1, 1, 2), (5, 3, 3))),
    ("half", Box((0, 3), (5, 7))),
    ("turned", Box((2, 1), (5, 3))),
    ("count", Box((), ())),
    ("empty", Box((0, 0), (0, 3))),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save(STATE, checkpoint_id=folder, no_dist=True)
    return folder


def read(reader: FileSystemReader, name: str, box: Box, lengths: tuple[int, ...]) -> Tensor:
    """Read a part into a float32 tensor."""
    zeros = torch.Size([0] * len(box.begin))
    index = MetadataIndex(name, zeros, 0)
    item = ReadItem(LoadItemType.TENSOR, index, zeros, index, torch.Size(box.begin), torch.Size(lengths))
    target, planner, metadata = torch.full(lengths, torch.nan), DefaultLoadPlanner(), reader.read_metadata()
    planner.set_up_planner({name: target}, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    reader.read_data(LoadPlan([item]), planner).wait()
    return target


@pytest.mark.parametrize(("name", "box"), PARTS)
def test_a_part_is_read_and_nothing_else(name: str, box: Box, saved: Path) -> None:
    reader = PartReader(saved)
    part = read(reader, name, box, box.shape)
    whole = STATE[name]
    expected = whole[tuple(slice(*ends) for ends in zip(*box, strict=True))]
    assert torch.equal(part, expected.float())
    assert torch.equal(part, read(FileSystemReader(saved), name, box, box.shape))
    assert reader.bytes_read == expected.nbytes


def test_a_part_outside_of_the_tensor_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="half"):
        read(PartReader(saved), "half", Box((0, 3), (5, 9)), (5, 6))


def test_a_cut_file_is_refused(saved: Path, tmp_path: Path) -> None:
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[:-700] if path.suffix == ".distcp" else path.read_bytes())
    metadata = FileSystemReader(saved).read_metadata()
    last = max(metadata.storage_data, key=lambda index: metadata.storage_data[index].offset).fqn
    box = Box.of(STATE[last].shape)
    with pytest.raises(CheckpointMismatch, match="restore it from a copy"):
        read(PartReader(tmp_path), last, box, box.shape)


def test_a_checkpoint_is_read_with_it(tiny: Path, tmp_path: Path, trainer: Callable[..., Any]) -> None:
    readers: list[PartReader] = []

    class Counted(PartReader):
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            readers.append(self)

    with trainer(tiny) as rank, patch.object(checkpoint_reader, "PartReader", Counted):
        rank.train(make_batch())
        digests = rank.weights_digest(), rank.optimizer_digest()
        rank.save_checkpoint(tmp_path / "saved")
        rank.train(make_batch(1))
        rank.load_checkpoint(tmp_path / "saved")
        assert (rank.weights_digest(), rank.optimizer_digest()) == digests
        parameters = sum(parameter.numel() for parameter in rank.trainee.model.parameters())
    (reader,) = readers
    assert 0 <= reader.bytes_read - 3 * 4 * parameters < 64, "weights and two moments, in float32, and a count of steps"
