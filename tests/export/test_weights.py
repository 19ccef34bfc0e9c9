"""`export --to weights`: a whole folder of any version, also of one that is stored as a delta."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from schemas.errors import RunNotFound, WeightsDamaged
from slime_events.analysis.export.weights import export_weights
from slime_events.core.config.toml import to_toml
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun
from storage.memory_log import MemoryLog
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import is_delta
from storage.weights.manifest import WeightManifest
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests import made


async def opened(folder: Path) -> tuple[OpenedRun, list[WeightManifest]]:
    """A run with versions 0 to 3, of which 3 was committed, but not published."""
    log, run = MemoryLog("run"), RunFolder(folder.parent, folder.name)
    store = WeightStore(str(run.weights), durable=False, deltas=DeltaRule(full_every=50))
    manifests = [
        store.write(version, [("w", "F32", (4,), bytes([version]) * 16)], version - 1 if version else None)
        for version in range(4)
    ]
    events = [made.published(each.version, url=store.folder(each.version), digest=each.digest) for each in manifests]
    await Participant(log, "trainer").append([*events[:3], made.committed(2, weights_digest=manifests[3].digest)])
    run.settings.write_text(to_toml(made.settings()))
    return dataclasses.replace(made.opened(log), folder=run), manifests


@pytest.mark.parametrize("version", range(4))
async def test_it_writes_a_whole_folder(tmp_path: Path, version: int) -> None:
    run, manifests = await opened(tmp_path / "run")
    assert await export_weights(run, version, str(tmp_path / "out")) == manifests[version]
    assert not is_delta(tmp_path / "out")
    assert verify(tmp_path / "out") == manifests[version]


async def test_a_version_that_is_not_there(tmp_path: Path) -> None:
    run, _ = await opened(tmp_path / "run")
    with pytest.raises(RunNotFound):
        await export_weights(run, 9, str(tmp_path / "out"))
    WeightStore(str(tmp_path / "run" / "weights")).remove([3])
    with pytest.raises(WeightsDamaged, match="save-version"):
        await export_weights(run, 3, str(tmp_path / "out"))
