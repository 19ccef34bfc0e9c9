"""Versions stored as deltas: the same bytes as in full, by every reader; damage is refused; what they need stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import CheckpointMismatch, WeightsDamaged
from storage.weights import whole_copies
from storage.weights.delta_rule import DeltaChecksum, DeltaEncoding, DeltaRule
from storage.weights.files import INDEX, is_delta, open_checkpoint, open_shard, shard_metadata
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightStore
from storage.weights.stored_version import digest_of, read, verify
from storage.weights.whole_copies import COPIES, KEPT, WholeCopies, whole_folder

RULE = DeltaRule(full_every=5)


def tensors(version: int) -> list[TensorBytes]:
    """A version in which some bytes differ from the one before; a tensor comes, another goes, a third gets longer."""
    rng = np.random.default_rng(0)
    big = rng.integers(0, 256, 4000, np.uint8)
    for step in range(version):
        big[np.random.default_rng(step + 1).integers(0, 4000, 40)] += 1
    named: list[TensorBytes] = [
        ("big", "BF16", (40, 50), big),
        ("same", "F32", (3,), np.arange(3, dtype=np.float32)),
        ("none", "F32", (0, 3), b""),
        ("scale", "F32", (), np.float32(version).tobytes()),
    ]
    if version >= 2:
        named.append(("new", "I64", (2,), np.full(2, version)))
    if version < 3:
        named.append(("old", "U8", (4,), bytes([version] * 4)))
    named.append(("longer", "U8", (4 if version < 4 else 6,), bytes(4 if version < 4 else 6)))
    return named


def filled(root: Path, rule: DeltaRule | None, versions: int = 8, **options: int) -> WeightStore:
    """A store with versions from 0."""
    (base := root.with_name("base")).mkdir(exist_ok=True)
    (base / "config.json").write_text("{}")
    store = WeightStore(str(root), base=base, durable=False, deltas=rule, **options)
    for version in range(versions):
        store.write(version, tensors(version), version - 1 if version else None)
    return store


def content(folder: str | Path) -> dict[str, bytes]:
    """Bytes of all files of a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("encoding", list(DeltaEncoding))
@pytest.mark.parametrize("checksum", list(DeltaChecksum))
@pytest.mark.parametrize("max_shard_bytes", [2**30, 60])
def test_every_version_reads_as_if_stored_in_full(
    tmp_path: Path, encoding: DeltaEncoding, checksum: DeltaChecksum, max_shard_bytes: int
) -> None:
    full = filled(tmp_path / "full", None, max_shard_bytes=max_shard_bytes)
    store = filled(tmp_path / "delta", DeltaRule(5, encoding, checksum), max_shard_bytes=max_shard_bytes)
    assert store.versions() == full.versions() == list(range(8))
    assert not (store.root / COPIES).exists(), "a delta is written without a whole version"
    for version in range(8):
        folder, other = Path(store.folder(version)), full.folder(version)
        assert is_delta(folder) == (version % 5 != 0)
        assert folder.name == Path(other).name
        assert verify(folder, digest_of(tensors(version))) == verify(other)
        assert {name: bytes(each.data) for name, each in read(folder)[1].items()} == {
            name: bytes(each.data) for name, each in open_checkpoint(other).items()
        }
        assert content(whole_folder(str(folder))) == content(other)


def test_the_files_are_slimes(tmp_path: Path) -> None:
    store = filled(tmp_path / "w", RULE)
    folder = Path(store.folder(2))
    index = json.loads((folder / INDEX).read_text())
    ours = {"base_digest": digest_of(tensors(1)), "base_folder": Path(store.folder(1)).name}
    assert index["metadata"] == ours | {
        "version": "000002",
        "base_version": "000001",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }
    assert sorted(index["weight_map"]) == ["big", "new", "old", "scale"]
    (file,) = set(index["weight_map"].values())
    frames = dict(open_shard(folder / file))
    assert frames.keys() == shard_metadata(folder / file).keys()
    assert {(frame.dtype, len(frame.shape)) for frame in frames.values()} == {("U8", 1)}
    old, new = (np.frombuffer(tensors(version)[0][3], np.uint8) for version in (1, 2))
    changed = np.frombuffer(zstandard.ZstdDecompressor().decompress(frames["big"].data), np.uint8)
    assert np.array_equal(changed ^ old, new)


def test_a_delta_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="changes from another"):
        open_checkpoint(filled(tmp_path / "w", RULE).folder(1))


def test_a_version_without_its_parent_is_full(tmp_path: Path) -> None:
    store = filled(tmp_path / "w", RULE, versions=0)
    store.write(3, tensors(3), 2)
    store.write(4, tensors(4), 3)
    assert [is_delta(Path(store.folder(version))) for version in (3, 4)] == [False, True]


def test_an_equal_version_has_no_frames(tmp_path: Path) -> None:
    store = filled(tmp_path / "w", RULE, versions=2)
    store.write(2, tensors(1), 1)
    assert json.loads((Path(store.folder(2)) / INDEX).read_text())["weight_map"] == {}
    assert verify(store.folder(2)).digest == digest_of(tensors(1))


def test_a_tensor_that_overwrite_cannot_express_makes_a_full_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.weights.delta_rule.OVERWRITE_LIMIT", 4000)
    store = filled(tmp_path / "w", DeltaRule(5, DeltaEncoding.OVERWRITE), versions=2)
    assert not is_delta(Path(store.folder(1)))


def test_what_a_kept_delta_needs_is_not_removed(tmp_path: Path) -> None:
    store = filled(tmp_path / "w", RULE)
    store.remove([0, 1, 2, 3, 4, 6])
    assert store.versions() == [5, 6, 7]
    store.write(8, tensors(8), 7)
    store.remove([0, 5, 6, 7, 8])
    assert store.versions() == []


def test_a_run_folder_may_move(tmp_path: Path) -> None:
    filled(tmp_path / "w", RULE)
    moved = (tmp_path / "w").rename(tmp_path / "elsewhere")
    store = WeightStore(str(moved))
    assert verify(store.folder(4)).digest == digest_of(tensors(4))


Damage = Callable[[WeightStore], object]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _edit(path: Path, **changes: object) -> None:
    index = json.loads(path.read_text())
    index["metadata"] |= changes
    path.write_text(json.dumps(index))


def _delta(store: WeightStore, version: int = 4) -> Path:
    (path,) = Path(store.folder(version)).glob("delta-*")
    return path


def _index(store: WeightStore) -> Path:
    return Path(store.folder(4)) / INDEX


DAMAGES: dict[str, Damage] = {
    "a delta is cut": lambda store: _cut(_delta(store)),
    "a delta has a wrong bit": lambda store: _flip(_delta(store)),
    "a delta of the chain has a wrong bit": lambda store: _flip(_delta(store, 2)),
    "a delta is gone": lambda store: _delta(store).unlink(),
    "a version of the chain is gone": lambda store: shutil.rmtree(store.folder(2)),
    "the full version is gone": lambda store: shutil.rmtree(store.folder(0)),
    "the full version has a wrong bit": lambda store: _flip(Path(store.folder(0)) / "model.safetensors", -100),
    "the delta of another version": lambda store: shutil.copy(_delta(store, 3), _delta(store)),
    "the config was edited": lambda store: (Path(store.folder(4)) / "config.json").write_text("[]"),
    "the config is gone": lambda store: [path.unlink() for path in store.root.glob("v*/config.json")],
    "another parent": lambda store: _edit(_index(store), base_folder=Path(store.folder(2)).name),
    "a later parent": lambda store: _edit(_index(store), base_version="000007"),
    "itself as parent": lambda store: _edit(_index(store), base_folder=Path(store.folder(4)).name),
    "a parent elsewhere": lambda store: _edit(_index(store), base_folder="../../etc"),
    "another compression": lambda store: _edit(_index(store), compression_format="lz4"),
    "an unknown encoding": lambda store: _edit(_index(store), delta_encoding="add"),
    "an unknown checksum": lambda store: _edit(_index(store), checksum_format="crc32"),
    "no parent": lambda store: _edit(_index(store), base_version=None),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused_and_leaves_no_copy(tmp_path: Path, name: str) -> None:
    store = filled(tmp_path / "w", RULE, versions=5)
    folder = Path(store.folder(4))
    DAMAGES[name](store)
    with pytest.raises(WeightsDamaged):
        verify(folder, digest_of(tensors(4)))
    with pytest.raises(WeightsDamaged), WholeCopies(tmp_path / "here").hold(folder, digest_of(tensors(4))):
        pass
    assert not list((tmp_path / "here").glob("v*"))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_wrong_byte_of_a_delta_gives_wrong_weights(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = filled(tmp_path_factory.mktemp("d") / "w", RULE, versions=3)
    digest, path = digest_of(tensors(2)), data.draw(st.sampled_from(sorted(Path(store.folder(2)).iterdir())))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.unlink()  # it may be a link
    path.write_bytes(content)
    try:
        verify(store.folder(2), digest)
    except WeightsDamaged:
        return
    assert {name: bytes(each.data) for name, each in read(store.folder(2))[1].items()} == {
        name: bytes(memoryview(each)) for name, _, _, each in tensors(2)
    }


def test_a_copy_is_made_from_the_nearest_and_the_last_used_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_copies, "SMALL_FILES", 3000)  # about those of these versions
    store, copies = filled(tmp_path / "w", RULE), WholeCopies(tmp_path / "here")
    with copies.hold(Path(store.folder(3))) as third:
        shutil.rmtree(store.folder(1))  # needed no more where a copy of 3 is
        with copies.hold(Path(store.folder(4)), digest_of(tensors(4))) as fourth:
            assert verify(fourth).version == 4
        for version in (6, 7):
            with copies.hold(Path(store.folder(version))):
                pass
        assert third.is_dir()
    assert len(list((tmp_path / "here").glob("v*"))) == KEPT  # 4 went, because 3 was held
    with copies.hold(Path(store.folder(6))) as sixth:
        pass
    store.write(8, tensors(8), 7)
    with copies.hold(Path(store.folder(8))):
        pass
    assert not third.exists()
    assert sixth.is_dir()
    with copies.hold(Path(store.folder(5))) as full:
        assert str(full) == store.folder(5)


@pytest.mark.parametrize("damage", [_flip, _cut])
def test_a_damaged_copy_is_made_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store, copies = filled(tmp_path / "w", RULE), WholeCopies(tmp_path / "here")
    folder, digest = Path(store.folder(3)), digest_of(tensors(3))
    with copies.hold(folder, digest) as copy:
        pass
    damage(copy / "model.safetensors")
    with copies.hold(Path(store.folder(4)), digest_of(tensors(4))) as next_copy:  # made from the stored base instead
        assert verify(next_copy, digest_of(tensors(4)))
    with copies.hold(folder, digest) as copy:
        assert verify(copy, digest)


def test_another_digest_is_refused(tmp_path: Path) -> None:
    store, copies = filled(tmp_path / "w", RULE), WholeCopies(tmp_path / "here")
    for _ in range(2):  # made now, and found
        with pytest.raises(WeightsDamaged, match="was published"), copies.hold(Path(store.folder(3)), "0" * 64):
            pass


PROGRAM = """
import os, signal, sys
from pathlib import Path
from storage.weights import whole_copies
write = whole_copies.write_shard
def killed(*arguments, **options):
    write(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
whole_copies.write_shard = killed
with whole_copies.WholeCopies(Path(sys.argv[2])).hold(Path(sys.argv[1])): pass
"""


def test_a_process_that_is_killed_while_it_makes_a_copy_leaves_none(tmp_path: Path) -> None:
    store, here = filled(tmp_path / "w", RULE), tmp_path / "here"
    ended = subprocess.run([sys.executable, "-c", PROGRAM, store.folder(3), str(here)], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [path.name for path in here.iterdir() if path.name.startswith(".partial-")]
    assert not list(here.glob("v*"))
    with WholeCopies(here).hold(Path(store.folder(3)), digest_of(tensors(3))) as copy:
        assert verify(copy).version == 3
    assert not list(here.glob(".partial-*"))
