"""Run in each process of `test_two_hosts`: two ranks that share nothing but an object store.

Each has a cache folder of its own, as on another host. A draft of the trainer is in rank 0's.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from actors.megatron import weight_share
from actors.megatron.rank import TrainerRank
from slime_events.core.config.algorithm import AlgorithmSettings
from storage.folders.cache import FOLDER
from storage.folders.places import parent_of
from storage.folders.remote import RemoteFolders
from storage.weights.delta_rule import DeltaRule
from storage.weights.delta_version import DELTA, delta_bytes
from storage.weights.manifest import WeightManifest
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests.megatron.ranks import agree
from tests.megatron.tiny import make_batch, settings_for

ELSEWHERE = ".elsewhere"
CASES: dict[str, dict[str, Any]] = {"data": {}, "tensor": {"tensor_model_parallel_size": 2}}


def run(model: Path, out: Path, case: str, rank: int, master: str) -> dict[str, Any]:
    """Save weights and a checkpoint, load both in the same ranks, each from its own copy, and train on."""
    settings = settings_for(model, megatron={"use_distributed_optimizer": True}, **CASES[case])
    trainer = TrainerRank(settings, AlgorithmSettings(), rank, 2, master)
    url = f"s3://slime/{case}"
    trainer.train(make_batch(0, zero=True))
    store = WeightStore(f"{url}/weights", deltas=DeltaRule(full_every=50))
    manifest = _write(trainer, store, 0)
    trainer.save_checkpoint(f"{url}/checkpoints/v000001-a")
    end = trainer.train(make_batch(1, zero=True)).optimizer_digest
    trainer.load_checkpoint(f"{url}/checkpoints/v000001-a")
    again = trainer.train(make_batch(1, zero=True)).optimizer_digest
    trained = trainer.weights_digest()
    change = _write(trainer, store, 1)
    trainer.place.of_each_rank(None)  # rank 0 has completed it
    first, folder = (WeightStore(f"{url}/weights").folder(version) for version in range(2))
    trainer.load_weights(first)
    loaded = trainer.weights_digest()
    trainer.load_weights(folder)
    changed = trainer.weights_digest()
    trainer.close()
    copies = sorted(path.name.rpartition("-")[0] for path in _cache().iterdir() if not path.name.startswith("."))
    return {
        "same": again == end,
        "digests": [loaded, verify(first).digest, *([manifest.digest] if manifest else [])],
        "changed": [trained, changed, verify(folder).digest, *([change.digest] if change else [])],
        "files": len({tensor.file for tensor in verify(folder).tensors.values()}),
        "deltas": len(_files(folder)),
        "share": (delta_bytes(folder) or 0) / verify(first).bytes,
        "copies": copies,
        "drafts": [str(path) for path in (*_cache().glob(".work/*/.v*"), *_cache().glob(f"{ELSEWHERE}/*"))],
    }


def _write(trainer: TrainerRank, store: WeightStore, version: int) -> WeightManifest | None:
    """Write a version as `Ranks.write_weights` does, with the draft at a path that only rank 0's host has."""
    least, weight_share.LEAST_BYTES = weight_share.LEAST_BYTES, 1
    rank, parent, each = trainer.place.rank, version - 1 if version else None, trainer.place.of_each_rank
    try:
        plan = each(store.plan(version, parent) if rank == 0 else None)[0]
        with store.draft(version) as draft:
            here = draft if rank == 0 else _cache() / ELSEWHERE / draft.name
            shards = trainer.write_shards(str(here), store.max_shard_bytes, False, plan)
            upload = each(store.upload(version, shards) if rank == 0 else None)[0]
            assert upload is not None
            uploaded = trainer.upload_shards(str(here), upload)
            if rank == 0:
                return store.complete(draft, version, shards, parent, plan=plan, upload=upload, uploaded=uploaded)
    finally:
        weight_share.LEAST_BYTES = least
    return None


def _files(url: str) -> list[str]:
    place, name = parent_of(url)
    return [file for file in RemoteFolders(place).contents(name).files if file.startswith(DELTA)]


def _cache() -> Path:
    return Path(os.environ[FOLDER])


def main() -> None:
    """`model out rank`: every case."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    model, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    os.environ[FOLDER] = str(out / f"cache{rank}")
    results = {case: run(model, out, case, rank, agree(out / f"{case}.master", rank)) for case in CASES}
    (out / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
