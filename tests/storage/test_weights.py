"""Weight versions: complete, verified, loadable by others; old ones go by rule."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from schemas.errors import CheckpointMismatch, NoSpace, WeightsDamaged
from storage.digests import tensor_digests, weights_digest
from storage.weights.files import INDEX, SINGLE, open_checkpoint
from storage.weights.manifest import write_manifest
from storage.weights.shards import TensorBytes
from storage.weights.store import Retention, WeightStore
from storage.weights.stored_version import read, verify


def tensors(seed: int = 0) -> list[TensorBytes]:
    rng = np.random.default_rng(seed)
    return [
        ("norm.weight", "BF16", (5,), rng.integers(0, 2**15, 5, dtype=np.uint16)),
        ("a.weight", "F32", (4, 3), rng.standard_normal((4, 3), dtype=np.float32)),
        ("b.weight", "F32", (2, 6), rng.standard_normal((2, 6), dtype=np.float32)),
        ("scale", "F32", (), np.float32(2.5).tobytes()),
        ("nothing", "F32", (0, 3), b""),
    ]


@pytest.mark.parametrize("max_shard_bytes", [2**30, 60])
def test_a_version_reads_back_verified(tmp_path: Path, max_shard_bytes: int) -> None:
    store = WeightStore(f"file://{tmp_path}/w", max_shard_bytes=max_shard_bytes)
    manifest = store.write(3, iter(tensors()), parent=2)
    folder = store.folder(3)
    assert verify(folder, manifest.digest) == manifest == read(folder)[0]
    assert manifest.digest == weights_digest(tensor_digests((n, (d, s, b)) for n, d, s, b in tensors()))
    stored = open_checkpoint(folder)
    assert {n: (d, s, bytes(memoryview(b))) for n, d, s, b in tensors()} == {
        n: (t.dtype, t.shape, bytes(t.data)) for n, t in stored.items()
    }
    assert (Path(folder) / INDEX).exists() == (max_shard_bytes == 60)
    assert manifest.bytes == 10 + 48 + 48 + 4
    for file in Path(folder).glob("*.safetensors"):  # the reference implementation agrees
        for name, tensor in load_file(file).items():
            assert tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() == bytes(stored[name].data)


def test_a_version_is_a_loadable_checkpoint(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=11,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "base")
    named = {name: tensor.detach() + 1 for name, tensor in model.state_dict().items()}
    store = WeightStore(str(tmp_path / "w"), base=tmp_path / "base", max_shard_bytes=2000)
    store.write(1, [(n, "F32", tuple(t.shape), t.numpy()) for n, t in named.items()], parent=0)
    (tmp_path / "base" / "config.json").write_text("edited afterwards")
    assert "config.json" in verify(store.folder(1)).files
    for name, tensor in AutoModelForCausalLM.from_pretrained(store.folder(1)).state_dict().items():
        assert torch.equal(tensor, named[name])


def test_damage_is_named(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    store = WeightStore(str(tmp_path / "w"), base=base)
    manifest = store.write(1, tensors(), parent=0)
    folder = Path(store.folder(1))
    with pytest.raises(WeightsDamaged, match="was published"):
        verify(folder, "0" * 64)
    shard = folder / SINGLE
    good = shard.read_bytes()
    for position, name in ((-1, "norm.weight"), (-11, "scale"), (-15, "b.weight")):
        bad = bytearray(good)
        bad[position] ^= 1
        shard.write_bytes(bad)
        with pytest.raises(WeightsDamaged, match=f"tensor '{name}'"):
            verify(folder)
    for end in (len(good) - 1, 40, 3, 0):
        shard.write_bytes(good[:end])
        with pytest.raises(WeightsDamaged, match="cut short"):
            verify(folder)
    shard.write_bytes(good)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace(manifest.tensors["scale"].sha256, "f" * 64))
    with pytest.raises(WeightsDamaged, match="do not have its digest"):
        verify(folder)
    (folder / "manifest.json").write_text(text)
    (folder / "config.json").write_text("[]")
    with pytest.raises(WeightsDamaged, match=r"config\.json"):
        verify(folder)


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reader_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("f")
    (folder / SINGLE).write_bytes(data)
    with pytest.raises(WeightsDamaged):
        open_checkpoint(folder)


@pytest.mark.parametrize("only_in_manifest", [False, True])
def test_a_tensor_that_either_files_or_manifest_have_alone_is_found(tmp_path: Path, only_in_manifest: bool) -> None:
    store = WeightStore(str(tmp_path))
    manifest = store.write(1, tensors(), parent=0)
    listed = dict(manifest.tensors)
    if only_in_manifest:
        listed["more"] = listed["scale"]
    else:
        del listed["scale"]
    changed = msgspec.structs.replace(manifest, tensors=listed)
    folder = Path(store.folder(1))
    write_manifest(folder, msgspec.structs.replace(changed, digest=weights_digest(changed.tensors)))
    with pytest.raises(WeightsDamaged, match="only in one of files and manifest"):
        verify(folder)


def test_a_manifest_of_another_dtype_or_shape_is_found(tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path))
    manifest = store.write(1, tensors(), parent=0)
    folder = Path(store.folder(1))
    for change in ({"dtype": "I32"}, {"shape": (1,)}):
        listed = manifest.tensors | {"scale": msgspec.structs.replace(manifest.tensors["scale"], **change)}
        changed = msgspec.structs.replace(manifest, tensors=listed)
        write_manifest(folder, msgspec.structs.replace(changed, digest=weights_digest(changed.tensors)))
        with pytest.raises(WeightsDamaged, match="'scale'"):
            verify(folder)
    with pytest.raises(WeightsDamaged, match="weights that do not fit its name"):
        store.write(1, tensors(), parent=0)


def test_a_configuration_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    store = WeightStore(str(tmp_path / "w"), base=tmp_path / "base")
    store.write(1, tensors(), parent=0)
    (Path(store.folder(1)) / "config.json").unlink()
    with pytest.raises(WeightsDamaged, match="missing"):
        verify(store.folder(1))


def test_an_edit_of_the_base_reaches_no_version_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    for version in (1, 2):
        store = WeightStore(str(tmp_path / "w"), base=tmp_path / "base")
        store.write(version, tensors(), parent=version - 1)
        (tmp_path / "base" / "config.json").write_text("[]")
    assert [(Path(store.folder(version)) / "config.json").read_text() for version in (1, 2)] == ["{}", "{}"]


def test_no_shard_is_larger_than_its_limit(tmp_path: Path) -> None:
    manifest = WeightStore(str(tmp_path), max_shard_bytes=60).write(1, tensors(), parent=0)
    sizes: dict[str, int] = {}
    for name, _, _, data in tensors():
        file = manifest.tensors[name].file
        sizes[file] = sizes.get(file, 0) + memoryview(data).nbytes
    assert sorted(sizes.values()) == [52, 58]


def test_writing_again_and_by_a_replaced_writer(tmp_path: Path) -> None:
    store, zombie = WeightStore(str(tmp_path)), WeightStore(str(tmp_path))
    manifest = store.write(1, tensors(), parent=0)
    assert store.write(1, tensors(), parent=0) == manifest
    other = zombie.write(1, tensors(seed=9), parent=0)
    assert other.digest != manifest.digest
    assert verify(store.folder(1, manifest.digest)) == manifest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_wrong_tensor_or_a_full_disk_leaves_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = WeightStore(str(tmp_path))
    with pytest.raises(CheckpointMismatch, match="tensor 'x' has 8 bytes"):
        store.write(1, [("x", "F32", (3,), b"12345678")], parent=0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpace):
        store.write(1, tensors(), parent=0)
    assert store.versions() == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WeightsDamaged, match="version 1 is not in"):
        store.folder(1)


def test_an_index_that_lies(tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path), max_shard_bytes=60)
    store.write(1, tensors(), parent=0)
    index = Path(store.folder(1)) / INDEX
    index_map = json.loads(index.read_text())
    for name, file in (("scale", "../x.safetensors"), ("scale", "gone.safetensors"), ("no", "model-00001-of-00002")):
        index.write_text(json.dumps({"weight_map": {**index_map["weight_map"], name: file}}))
        with pytest.raises(WeightsDamaged):
            open_checkpoint(store.folder(1))


@given(
    st.sets(st.integers(0, 60)),
    st.sets(st.integers(0, 60)),
    st.integers(0, 5),
    st.integers(0, 7).filter(lambda n: n != 1),
)
def test_retention(versions: set[int], pinned: set[int], newest: int, every: int) -> None:
    gone = set(Retention(newest, every).removable(versions, pinned))
    kept = versions - gone
    assert gone <= versions
    assert not gone & pinned
    assert set(sorted(versions)[len(versions) - min(newest, len(versions)) :]) <= kept
    assert all(every and v % every == 0 for v in kept - pinned if sum(u > v for u in versions) >= newest)
    assert not any(every and v % every == 0 for v in gone)


@given(st.sets(st.integers(0, 60)), st.integers(1, 5), st.integers(1, 7))
def test_retention_of_the_version_that_was_evaluated_last(versions: set[int], newest: int, evaluated: int) -> None:
    gone = set(Retention(newest, evaluated=evaluated).removable(versions))
    due = [version for version in versions if version % evaluated == 0]
    assert gone == set(Retention(newest).removable(versions)) - set(due and [max(due)])


def test_removal(tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path))
    for version in range(5):
        store.write(version, tensors(version), parent=version - 1 if version else None)
    store.remove(Retention(newest=2).removable(store.versions(), pinned=[0]))
    assert store.versions() == [0, 3, 4]
