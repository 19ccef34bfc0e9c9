"""Weight versions repeat the multi-token prediction layers of the base checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor, randn

from schemas.errors import CheckpointMismatch, WeightsDamaged
from storage.weights.base_files import MANIFEST
from storage.weights.copies import copy_version
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import INDEX, is_delta, open_checkpoint
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightStore
from storage.weights.stored_version import read, trained_tensors, verify
from storage.weights.whole_copies import whole_folder

NAMES = ("model.layers.2.eh_proj.weight", "model.layers.2.shared_head.head.weight")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a layer of two tensors after the last of its two layers."""
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "num_nextn_predict_layers": 1}))
    trained = {"model.layers.1.a.weight": randn(3), "model.layers.20.b.weight": randn(2), "lm_head.weight": randn(2)}
    save_file(trained | {name: randn(3, 4) for name in NAMES}, folder / "model.safetensors")
    return folder


def trained(value: float = 1.0) -> list[TensorBytes]:
    return [("model.layers.1.a.weight", "F32", (3,), np.full(3, value, np.float32))]


def of_base(base: Path) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in load_file(base / "model.safetensors").items() if name in NAMES}


@pytest.mark.parametrize("max_shard_bytes", [2**30, 12])
def test_a_version_has_the_layers_of_the_base(base: Path, tmp_path: Path, max_shard_bytes: int) -> None:
    store = WeightStore(str(tmp_path / "w"), base=base, max_shard_bytes=max_shard_bytes, durable=False)
    plain = WeightStore(str(tmp_path / "plain"), durable=False).write(1, trained(), parent=0)
    manifest = store.write(1, trained(), parent=0)
    assert (manifest.digest, manifest.bytes, manifest.tensors.keys()) == (plain.digest, 12, plain.tensors.keys())
    folder = Path(store.folder(1))
    assert verify(folder, manifest.digest) == manifest
    assert manifest.carried.keys() == set(NAMES)
    assert read(folder)[1].keys() == trained_tensors(folder).keys() == plain.tensors.keys()
    stored = open_checkpoint(folder)
    for name, tensor in of_base(base).items():
        assert bytes(stored[name].data) == tensor.numpy().tobytes()
    index = json.loads((folder / INDEX).read_text())
    assert index["weight_map"].keys() == stored.keys() == {*NAMES, *plain.tensors}
    assert index["metadata"]["total_size"] == 12 + 2 * 48
    assert {path.name for path in folder.glob("*.safetensors")} == set(index["weight_map"].values())


def test_a_delta_and_its_copy_have_them_too(base: Path, tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path / "w"), base=base, durable=False, deltas=DeltaRule(full_every=5))
    full = WeightStore(str(tmp_path / "full"), base=base, durable=False)
    for version in (1, 2):
        for each in (store, full):
            each.write(version, trained(float(version)), parent=version - 1)
    folder = Path(store.folder(2))
    assert is_delta(folder)
    assert verify(folder) == verify(full.folder(2))
    copy = Path(whole_folder(str(folder)))
    contents = [{path.name: path.read_bytes() for path in each.iterdir()} for each in (copy, Path(full.folder(2)))]
    assert contents[0] == contents[1]
    shutil.rmtree(store.root / "copies")
    carried = folder / verify(folder).carried[NAMES[0]].file
    carried.write_bytes(carried.read_bytes()[:-1] + b"?")
    with pytest.raises(WeightsDamaged):
        whole_folder(str(folder))


def test_versions_and_copies_share_one_file(base: Path, tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path / "w"), base=base, durable=False)
    store.write(1, trained(1.0), parent=0)
    kept = of_base(base)
    save_file(load_file(base / "model.safetensors") | {NAMES[0]: randn(3, 4)}, base / "model.safetensors")
    store.write(2, trained(2.0), parent=1)
    later = WeightStore(str(tmp_path / "w"), base=base, durable=False)
    later.write(3, trained(3.0), parent=2)
    copy_version(store.folder(1), str(tmp_path / "hf"))
    folders = [Path(store.folder(version)) for version in (1, 2, 3)] + [tmp_path / "hf"]
    files = [folder / verify(folder).carried[NAMES[0]].file for folder in folders]
    assert len({os.stat(file).st_ino for file in files}) == 1
    assert bytes(open_checkpoint(folders[2])[NAMES[0]].data) == kept[NAMES[0]].numpy().tobytes()


def test_a_tensor_that_the_trainer_writes_is_not_repeated(base: Path, tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path / "w"), base=base, durable=False)
    own = (NAMES[0], "F32", (3, 4), np.ones((3, 4), np.float32))
    manifest = store.write(1, [*trained(), own], parent=0)
    assert (NAMES[0] in manifest.tensors, list(manifest.carried)) == (True, [NAMES[1]])
    every = store.write(2, [*trained(), own, (NAMES[1], *own[1:])], parent=1)
    assert every.carried == {}
    assert store.write(3, trained(), parent=2).carried.keys() == set(NAMES)
    for version in (1, 2, 3):
        verify(store.folder(version))


def test_a_base_without_such_layers_adds_nothing(base: Path, tmp_path: Path) -> None:
    for number, config in enumerate(
        ({"num_hidden_layers": 2}, {"num_hidden_layers": 3, "num_nextn_predict_layers": 1})
    ):
        (base / "config.json").write_text(json.dumps(config))
        store = WeightStore(str(tmp_path / str(number)), base=base, durable=False)
        assert store.write(1, trained(), parent=0).carried == {}
        assert not (Path(store.folder(1)) / INDEX).exists()


def test_damage_is_named(base: Path, tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path / "w"), base=base, durable=False)
    manifest = store.write(1, trained(), parent=0)
    folder = Path(store.folder(1))
    file = folder / manifest.carried[NAMES[0]].file
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(WeightsDamaged, match=NAMES[1]):
        verify(folder)
    file.write_bytes(good)
    listing = json.loads((folder / MANIFEST).read_text())
    twice = listing | {"carried": listing["carried"] | listing["tensors"]}
    (folder / MANIFEST).write_text(json.dumps(twice))
    with pytest.raises(WeightsDamaged, match="twice"):
        verify(folder)
    outside = {**listing["carried"][NAMES[0]], "file": "../x"}
    (folder / MANIFEST).write_text(json.dumps(listing | {"carried": {NAMES[0]: outside}}))
    with pytest.raises(WeightsDamaged, match=r"\.\./x"):
        verify(folder)
    (base / "config.json").write_text('{"num_hidden_layers": "many"}')
    with pytest.raises(CheckpointMismatch, match=r"config\.json"):
        WeightStore(str(tmp_path / "other"), base=base).write(1, trained(), parent=0)
