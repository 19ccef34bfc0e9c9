"""Runs of files: any box of a tensor is read from blocks of any layout, and nothing else is."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
import torch

from schemas.errors import CheckpointMismatch
from storage.weights.file_runs import BUFFER_BYTES, Block, Box, FileRun, RunReader, row_major, runs_of
from storage.weights.saved_tensor import locate_tensor


def read(runs: list[FileRun], tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    reader = RunReader()
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    reader.fill(out.reshape(-1).view(torch.uint8).numpy().data, runs)
    reader.close()
    return out, reader.bytes_read


def random_box(shape: tuple[int, ...], choose: random.Random) -> Box:
    ends = [sorted(choose.sample(range(size + 1), 2)) for size in shape]
    return Box(tuple(begin for begin, _ in ends), tuple(end for _, end in ends))


@pytest.mark.parametrize("seed", range(20))
def test_a_box_is_read_from_blocks_of_any_layout_and_nothing_else(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    shape = tuple(choose.randint(1, 6) for _ in range(choose.randint(1, 4)))
    whole = torch.randn(shape)
    axis = choose.randrange(len(shape))
    blocks, at = [], 0
    for index, part in enumerate(whole.split(choose.randint(1, 3), axis)):
        stored = part.transpose(0, -1) if choose.random() < 0.5 else part
        path = tmp_path / f"{index}"
        path.write_bytes(b"before" + stored.contiguous().numpy().tobytes())
        strides = row_major(stored.shape)
        if stored is not part:
            strides = (strides[-1], *strides[1:-1], strides[0]) if len(strides) > 1 else strides
        begin = tuple(at if i == axis else 0 for i in range(len(shape)))
        end = tuple(first + size for first, size in zip(begin, part.shape, strict=True))
        blocks.append(Block(Box(begin, end), path, 6, strides))
        at += part.shape[axis]
    choose.shuffle(blocks)
    box = random_box(shape, choose)
    expected = whole[tuple(slice(*ends) for ends in zip(*box, strict=True))].contiguous()
    read_back, taken = read(runs_of(blocks, box, 4, "it"), expected)
    assert torch.equal(read_back, expected)
    assert taken == expected.numel() * 4
    if len(blocks) > 1:
        for some in (blocks[1:], [*blocks, blocks[0]]):
            with pytest.raises(CheckpointMismatch):
                runs_of(some, Box.of(shape), 4, "it")


def test_runs_are_copied_in_order_long_and_short(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(5 * BUFFER_BYTES)
    (tmp_path / "from").write_bytes(data)
    places = [(3, 10), (BUFFER_BYTES, 2 * BUFFER_BYTES + 1), (0, 7), (9, BUFFER_BYTES - 1), (50, 70000), (1, 0), (4, 4)]
    reader = RunReader()
    with io.FileIO(tmp_path / "to", "x") as file:
        file.write(b"head")
        reader.copy([FileRun(tmp_path / "from", *place) for place in places], file)
        with pytest.raises(CheckpointMismatch):
            reader.copy([FileRun(tmp_path / "from", len(data) - 5, BUFFER_BYTES)], file)
    copied = b"".join(data[start : start + length] for start, length in places)
    assert (tmp_path / "to").read_bytes().startswith(b"head" + copied)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "uint8", "bool", "float8_e4m3fn"])
def test_a_tensor_that_torch_saved_is_found(dtype: str, tmp_path: Path) -> None:
    whole = torch.randint(0, 2, (6, 5)).to(getattr(torch, dtype))
    for tensor in (whole, whole.t(), whole[2:, 1:3]):
        file = io.BytesIO(b"before")
        file.seek(6)
        torch.save(tensor, file)
        data = file.getvalue()
        (tmp_path / "file").write_bytes(data + b"after")
        saved = locate_tensor(tmp_path / "file", 6, len(data) - 6)
        assert (saved.dtype, saved.shape) == (dtype, tuple(tensor.shape))
        block = Block(Box.of(tensor.shape), tmp_path / "file", saved.start, saved.strides)
        read_back, _ = read(runs_of([block], Box.of(tensor.shape), tensor.itemsize, "it"), tensor)
        assert torch.equal(read_back.view(torch.uint8), tensor.contiguous().view(torch.uint8))
        with pytest.raises(CheckpointMismatch):
            locate_tensor(tmp_path / "file", 6, len(data) - 40)
    file = io.BytesIO()
    torch.save({"a": print}, file)
    (tmp_path / "file").write_bytes(file.getvalue())
    with pytest.raises(CheckpointMismatch, match="print"):
        locate_tensor(tmp_path / "file", 0, len(file.getvalue()))


def test_strips_of_a_box_are_its_rows_in_order() -> None:
    box = Box((1, 2, 0), (3, 4, 5))
    assert list(box.strips(0)) == [box]
    assert list(box.strips(1)) == [Box((1, 2, 0), (2, 4, 5)), Box((2, 2, 0), (3, 4, 5))]
    assert [strip.begin for strip in box.strips(2)] == [(1, 2, 0), (1, 3, 0), (2, 2, 0), (2, 3, 0)]
