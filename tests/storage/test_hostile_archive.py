"""An archive that somebody else has made: its names lead nowhere, and its sizes are bounded before memory is taken."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import Array, BlobRef
from schemas.errors import (
    ArchiveDamaged,
    BlobDamaged,
    DamagedEvent,
    InvalidValue,
    SlimeEventsError,
    StoreUnavailable,
    WeightsDamaged,
)
from schemas.prompts import Source
from slime_events.core.state.snapshot import Snapshot, Unusable, pack, unpack
from slime_events.core.training.datums import unpack_datums
from storage.archive.manifest import SegmentManifest, digest_of, manifest_name, segment_name, to_json
from storage.archive.reader import ArchiveReader
from storage.archive.transfer import repair_archive, restore_log
from storage.archive.writer import ArchiveWriter
from storage.blobs import BlobStore
from storage.compression import FRAME_LIMIT, decompress
from storage.memory_log import MemoryLog
from storage.object_store import ObjectFolder
from storage.weights.base_files import MANIFEST
from storage.weights.manifest import WeightManifest, read_manifest, write_manifest
from tests import made
from tests.storage.test_archive_trust import RUN, prompt, recorded, written

OUTSIDE = ["../../elsewhere", "/etc/passwd", "segments/../../x", "segments//x", "a\0b", "", ".", "..", "segments/."]
DIGESTS = [
    "",
    "a",
    "../../x",
    "/etc/passwd",
    "0" * 63,
    "0" * 65,
    "0" * 63 + "\n",
    "g" * 64,
    "0" * 64 + "\n",
    "0" * 61 + "/..",
]


def frame(size: int, *, says: bool = True) -> bytes:
    """Build a zstd frame of `size` zeros, piece by piece."""
    maker = zstandard.ZstdCompressor(level=1).compressobj(size=size if says else -1)
    piece = bytes(1 << 24)
    parts = [maker.compress(piece) for _ in range(size >> 24)]
    return b"".join([*parts, maker.flush()])


def changed(folder: Path, **fields: Any) -> SegmentManifest:
    """Put other fields into the first manifest of an archive."""
    path = folder / RUN / manifest_name(1)
    manifest = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=SegmentManifest), **fields)
    path.write_bytes(to_json(manifest))
    return manifest


@pytest.mark.parametrize("name", OUTSIDE)
async def test_a_manifest_names_its_own_segment_alone(tmp_path: Path, name: str) -> None:
    log = await made.log(prompt(1))
    written(tmp_path / "archive", log.records)
    manifest = changed(tmp_path / "archive", name=name)
    (tmp_path / "archive" / RUN / segment_name(1, manifest.sha256)).unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArchiveDamaged):
        await repair_archive(log, str(tmp_path / "archive"), RUN)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("digest", DIGESTS)
async def test_a_manifest_s_digest_has_the_form_of_one(tmp_path: Path, digest: str) -> None:
    written(tmp_path, await recorded(3))
    changed(tmp_path, sha256=digest, name=segment_name(1, digest))
    with pytest.raises(ArchiveDamaged):
        ArchiveReader(str(tmp_path), RUN)


@pytest.mark.parametrize(
    "fields",
    [
        {"bytes": -1}, {"bytes": 1 << 40}, {"raw_bytes": -1}, {"raw_bytes": 6 << 30}, {"chain": "zz"}, {"before": "00"},
        {"foreign": (0,)}, {"foreign": (4,)}, {"foreign": (2, 1)}, {"foreign": (1, 1)}, {"foreign": (1 << 70,)},
        {"last": 1 << 62, "count": 1 << 62}, {"count": -1, "last": -1},
    ],
)  # fmt: skip
async def test_a_manifest_s_numbers_are_bounded(tmp_path: Path, fields: dict[str, Any]) -> None:
    written(tmp_path, await recorded(3))
    changed(tmp_path, **fields)
    with pytest.raises(ArchiveDamaged):
        ArchiveReader(str(tmp_path), RUN)


def _hostile(folder: Path, data: bytes, **fields: Any) -> ArchiveReader:
    digest = digest_of(data)
    manifest = SegmentManifest(
        segment=1, first=1, last=1, count=1, bytes=len(data), sha256=digest, name=segment_name(1, digest), parent="",
        layout=2, **{"raw_bytes": 100, **fields},
    )  # fmt: skip
    objects = ObjectFolder(str(folder / RUN))
    objects.create(manifest.name, data)
    objects.create(manifest_name(1), to_json(manifest))
    return ArchiveReader(str(folder), RUN)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("raw_bytes", [100, FRAME_LIMIT])
def test_a_small_segment_that_holds_gigabytes_is_refused(tmp_path: Path, says: bool, raw_bytes: int) -> None:
    """In a process that has no such memory: it says why, and does not die of it."""
    reader = _hostile(tmp_path, frame(3 << 30, says=says), raw_bytes=raw_bytes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArchiveDamaged):
        reader.segment(reader.segments[0])
    assert reader.damaged() == reader.segments
    with pytest.raises(SlimeEventsError):
        list(reader.read())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


def test_a_frame_holds_as_much_as_its_reader_expects() -> None:
    for says in (True, False):
        packed = frame(1 << 24, says=says)
        assert len(decompress(packed)) == 1 << 24
        with pytest.raises(ValueError, match=r"holds|frame"):
            decompress(packed, (1 << 24) - 1)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_frame_gives_what_was_packed_or_an_error(data: bytes, limit: int) -> None:
    packed = zstandard.compress(data)
    if len(data) <= limit:
        assert decompress(packed, limit) == data
    else:
        with pytest.raises(ValueError, match=r"holds|frame"):
            decompress(packed, limit)


def test_a_snapshot_and_datums_that_hold_gigabytes_are_refused() -> None:
    import numpy as np

    large = frame(3 << 30)
    with pytest.raises(DamagedEvent):
        unpack_datums(np.frombuffer(large, np.int8))
    stored = pack(b"")
    head = stored[: len(stored) - len(zstandard.ZstdCompressor(level=3).compress(b"")) - 32]
    with pytest.raises(Unusable):
        unpack(head + hashlib.sha256(large).digest() + large, Snapshot)


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_blob_is_named_by_a_digest_alone(tmp_path: Path, digest: str) -> None:
    (tmp_path / "x").write_bytes(b"secret")
    blobs = BlobStore(str(tmp_path / "blobs" / "here"))
    with pytest.raises(BlobDamaged):
        blobs.get(BlobRef(digest, 6))
    with pytest.raises(BlobDamaged):
        blobs.has(BlobRef(digest, 6))


@pytest.mark.parametrize("size", [-1, 1 << 50])
def test_a_blob_has_the_size_of_one(tmp_path: Path, size: int) -> None:
    with pytest.raises(BlobDamaged):
        BlobStore(str(tmp_path)).get(BlobRef("0" * 64, size))


def test_of_a_larger_blob_no_more_is_read_than_its_size(tmp_path: Path) -> None:
    blobs = BlobStore(str(tmp_path))
    ref = blobs.put(b"payload")
    with (tmp_path / ref.sha256[:2] / ref.sha256[2:]).open("r+b") as file:
        file.truncate(1 << 40)  # a file with a hole takes no room
    with pytest.raises(BlobDamaged):
        blobs.get(ref)


async def test_restore_copies_no_file_that_a_blob_s_name_leads_to(tmp_path: Path) -> None:
    log = MemoryLog(RUN)
    far = Array(dtype="int32", n=1, blob=BlobRef("../../../secret", 4))
    await made.say(log, made.submitted(tokens=far, source=Source("f", row=1)))
    written(tmp_path / "archive", log.records)
    (tmp_path / "secret").write_bytes(b"1234")
    target = MemoryLog(RUN)
    with pytest.raises(BlobDamaged):
        await restore_log(ArchiveReader(str(tmp_path / "archive"), RUN), target, BlobStore(str(tmp_path / "blobs")))
    assert not target.records


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_object_lies_in_its_folder(tmp_path: Path, name: str) -> None:
    for url in (str(tmp_path / "a" / "b"), "memory://hostile/names"):
        objects = ObjectFolder(url)
        for act in (
            objects.read,
            objects.exists,
            partial(objects.create, data=b""),
            partial(objects.replace, data=b""),
        ):
            with pytest.raises(InvalidValue):
                act(name)
    assert not list(tmp_path.rglob("*"))


def test_a_pipe_or_device_is_no_object(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "zeros"):
        with pytest.raises(StoreUnavailable):
            ObjectFolder(str(tmp_path)).read(name)


async def test_a_manifest_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    written(tmp_path, await recorded(3))
    with (tmp_path / RUN / manifest_name(1)).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreUnavailable):
        ArchiveReader(str(tmp_path), RUN)


async def test_manifests_in_a_circle_end(tmp_path: Path) -> None:
    """Each follows the one before by its number and position: none can come again."""
    written(tmp_path, await recorded(3))
    manifests = tmp_path / RUN / "manifest"
    for number in (2, 3):
        shutil.copy(manifests / "00000001.json", manifests / f"{number:08d}.json")
    with pytest.raises(ArchiveDamaged):
        ArchiveReader(str(tmp_path), RUN)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ""])
def test_a_weight_manifest_names_files_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "v000001-x"
    folder.mkdir()
    empty = digest_of_nothing()
    write_manifest(folder, WeightManifest(version=1, parent=None, digest=empty, bytes=0, tensors={}, files={name: ""}))
    with pytest.raises(WeightsDamaged, match="not a file of its folder"):
        read_manifest(folder)


def test_a_weight_manifest_that_is_nested_is_damaged(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b'{"version": ' + b"[" * 100_000)
    with pytest.raises(WeightsDamaged):
        read_manifest(tmp_path)


def digest_of_nothing() -> str:
    """The digest of a version without tensors."""
    from storage.weights.stored_version import digest_of as digest_of_tensors

    return digest_of_tensors(())


async def test_two_manifests_name_two_segments(tmp_path: Path) -> None:
    """Else a repair of one would write over the other."""
    log = await made.log(prompt(1), prompt(2))
    writer = ArchiveWriter(str(tmp_path), RUN)
    for record in log.records:
        writer.add(record)
        writer.seal()
    first, second = writer.segments
    path = tmp_path / RUN / manifest_name(2)
    path.write_bytes(to_json(msgspec.structs.replace(second, name=first.name)))
    with pytest.raises(ArchiveDamaged):
        ArchiveReader(str(tmp_path), RUN)
