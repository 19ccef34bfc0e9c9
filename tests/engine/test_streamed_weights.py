"""`Stream` with a group that is a script: what a loader gets, and which votes the ranks of an engine make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.trainer import transfer_sender
from schemas.errors import WeightsDamaged
from serve_apps.engines import streamed_weights
from serve_apps.engines.streamed_weights import Buffers, Stream
from storage.weights import broadcast
from storage.weights.broadcast import all_tensors, buckets
from storage.weights.files import TensorView, open_checkpoint
from storage.weights.manifest import WeightManifest, read_manifest
from storage.weights.store import WeightStore

BYTES = 1000


class Work:
    """A bucket that arrives when somebody waits for it."""

    def __init__(self, target: torch.Tensor, data: bytes) -> None:
        self._target, self._data = target, data

    def wait(self) -> None:
        if not self._data:
            raise RuntimeError("the sender is gone")
        self._target.numpy()[:] = np.frombuffer(self._data, np.uint8)


class Version:
    """A stored version of 40 tensors, and a group that sends it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rng, store = np.random.default_rng(0), WeightStore(str(root), durable=False)
        tensors = []
        for number in range(40):
            rows, width = number % 7 + 1, 2 if number % 3 else 4
            dtype = "BF16" if width == 2 else "F32"
            tensors.append((f"t{number:02}", dtype, (rows, 40), rng.bytes(rows * 40 * width)))
        store.write(0, tensors, None)
        self.folder = Path(store.folder(0))
        self.manifest: WeightManifest = read_manifest(self.folder)
        self.tensors: dict[str, TensorView] = dict(open_checkpoint(self.folder))
        self.parts = list(buckets(self.manifest, BYTES))
        self.sent = [b"".join(self.tensors[name].data for name in names) for names in self.parts]
        self.votes: list[bool] = []
        self.refused = -1
        """Number of the vote at which another rank is not well."""
        monkeypatch.setattr(streamed_weights, "STREAM_BYTES", BYTES)
        self._next: Iterator[bytes] = iter(())
        monkeypatch.setattr(torch.distributed, "broadcast", self._broadcast)

    def _broadcast(self, target: torch.Tensor, **_: object) -> Work:
        data = next(self._next)
        assert len(data) in (0, target.numel())
        return Work(target, data)

    def _vote(self, is_well: bool) -> bool:
        self.votes.append(is_well)
        return is_well and len(self.votes) - 1 != self.refused

    def stream(self) -> Stream:
        self._next = iter(self.sent)
        return Stream(None, self.parts, all_tensors(self.manifest), self._vote)  # type: ignore[arg-type]

    def holds(self, name: str, tensor: torch.Tensor) -> bool:
        stored = self.manifest.tensors[name]
        is_shaped = tuple(tensor.shape) == stored.shape
        return is_shaped and tensor.contiguous().view(torch.uint8).numpy().tobytes() == bytes(self.tensors[name].data)


@pytest.fixture
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Version:
    return Version(tmp_path, monkeypatch)


def test_a_loader_gets_every_tensor_once_with_its_bytes(version: Version) -> None:
    names = []
    for name, tensor in version.stream():
        assert version.holds(name, tensor)
        names.append(name)
    assert names == [name for part in version.parts for name in part]
    assert sorted(names) == sorted(version.tensors)
    assert version.votes == [True] * (len(version.parts) + 1)


def test_tensors_that_a_loader_keeps_are_not_overwritten(version: Version) -> None:
    kept = {name: tensor for name, tensor in version.stream() if int(name[1:]) % 5 == 0}
    assert len(kept) == 8
    assert all(version.holds(name, tensor) for name, tensor in kept.items())


def test_buffers_are_used_again(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved, empty = [], np.empty

    def reserve(size: int, dtype: type) -> np.ndarray:
        reserved.append(size)
        return empty(size, dtype)

    monkeypatch.setattr(np, "empty", reserve)
    for _name, _tensor in version.stream():
        pass
    assert len(version.parts) > 15
    assert reserved.count(BYTES) <= broadcast.STREAM_DEPTH + 3
    assert len(reserved) - reserved.count(BYTES) == sum(len(data) > BYTES for data in version.sent)


def test_a_buffer_is_free_after_the_last_view_of_it() -> None:
    buffers = Buffers()
    first = buffers.get(10)
    address, part = first.ctypes.data, torch.from_numpy(first)[3:5]
    del first
    second = buffers.get(10)
    assert second.ctypes.data != address
    del part
    assert buffers.get(10).ctypes.data == address


@pytest.mark.parametrize("bucket", [0, 7, -1])
def test_of_a_bucket_with_other_bytes_nothing_is_loaded(version: Version, bucket: int) -> None:
    damaged = bytearray(version.sent[bucket])
    damaged[-1] ^= 1
    version.sent[bucket] = bytes(damaged)
    loaded = list[str]()
    with pytest.raises(WeightsDamaged, match=version.parts[bucket][-1]):
        loaded.extend(name for name, _ in version.stream())
    number = bucket % len(version.parts)
    assert loaded == [name for part in version.parts[:number] for name in part]
    assert version.votes == [True] * number + [False]


def test_a_sender_that_is_gone_ends_the_stream(version: Version) -> None:
    version.sent[3:] = [b""] * len(version.sent[3:])
    with pytest.raises(WeightsDamaged, match="the sender is gone"):
        list(version.stream())
    assert version.votes == [True, True, True, False]


def test_a_bucket_that_another_rank_refuses_is_not_loaded(version: Version) -> None:
    version.refused, loaded = 2, list[str]()
    with pytest.raises(WeightsDamaged, match="another rank"):
        loaded.extend(name for name, _ in version.stream())
    assert loaded == version.parts[0] + version.parts[1]
    assert version.votes == [True] * 3


@pytest.mark.parametrize("stop", [0, 13, 39])
def test_a_loader_that_fails_tells_the_other_ranks(version: Version, stop: int) -> None:
    """They vote once more, even if they have loaded everything."""
    tensors = iter(version.stream())
    for _ in range(stop + 1):
        name, _tensor = next(tensors)
    del tensors
    number = next(number for number, part in enumerate(version.parts) if name in part)
    assert version.votes == [True] * (number + 1) + [False]


def test_a_bucket_is_sent_from_its_file_without_a_copy(version: Version) -> None:
    for names, expected in zip(version.parts, version.sent, strict=True):
        parts = [version.tensors[name].data for name in names]
        joined = transfer_sender._joined(parts)
        assert joined.numpy().tobytes() == expected
        assert joined.data_ptr() == np.frombuffer(parts[0], np.uint8).ctypes.data


def test_a_bucket_of_tensors_apart_is_copied(version: Version) -> None:
    names = [version.parts[2][0], version.parts[0][0]]
    parts = [version.tensors[name].data for name in names]
    assert transfer_sender._joined(parts).numpy().tobytes() == b"".join(parts)
    assert transfer_sender._joined([memoryview(b"ab"), memoryview(b""), memoryview(b"c")]).tolist() == list(b"abc")
    assert transfer_sender._joined([memoryview(b"")]).tolist() == []


def test_a_bucket_is_of_one_file_and_begins_each_tensor_at_its_item_size(version: Version) -> None:
    for names in version.parts:
        tensors = [version.manifest.tensors[name] for name in names]
        assert len({tensor.file for tensor in tensors}) == 1
        widths = [4 if tensor.dtype == "F32" else 2 for tensor in tensors]
        assert widths == sorted(widths, reverse=True)
        assert len(names) == 1 or sum(len(version.tensors[name].data) for name in names) <= BYTES
