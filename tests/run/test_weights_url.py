"""A run whose weights are in an object store: the same log as with a folder, from any host."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from schemas.errors import InvalidValue, SlimeEventsError
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.analysis.audit.read import audit_folder
from slime_events.analysis.views.disk import view_disk
from slime_events.app.launch.folder_preflight import check_folders
from slime_events.core.config.paths import missing_paths
from slime_events.core.run.run_folder import RunFolder
from storage.folders.cache import FOLDER
from storage.folders.remote import RemoteFolders
from storage.weights.store import WeightStore
from tests.run.cheap import CountingRanks, Parts, cheap_parts
from tests.run.tiny import events_of, of, run_with, tiny

_numbers = itertools.count()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return f"memory://weights-url-{next(_numbers)}"


def test_a_run_with_its_weights_at_a_url(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for name, where in (("local", None), ("remote", url)):
        run = {"weights_url": where, "cache_dir": str(tmp_path / "chosen") if where else None}
        with cheap_parts(Parts()):
            asyncio.run(run_with(tiny(tmp_path / name, "demo", run=run)))
        events = events_of(tmp_path / name / "runs" / "demo")
        digests.append([step.weights_digest for step in of(events, StepCommitted)])
        assert {event.version for event in of(events, WeightsActivated)} >= {0}
    assert digests[0] == digests[1]
    folder = RunFolder(tmp_path / "remote" / "runs", "demo")
    assert list(folder.weights.iterdir()) == []
    published = of(events, WeightsPublished)
    assert all(event.url.startswith(f"{url}/demo/v") for event in published)
    assert folder.weights_url() == f"{url}/demo"
    assert (tmp_path / "chosen").is_dir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "another-host"))
    report = asyncio.run(audit_folder(folder))
    assert list(report.findings) == []
    counts = next(check.counts for check in report.checks if check.name == "files")
    assert counts["verified"] == len(published)
    disk = view_disk(folder)
    assert disk.weights.url == f"{url}/demo"
    assert disk.weights.versions == tuple(event.version for event in published)
    assert disk.weights.bytes > 0
    with pytest.raises(InvalidValue, match="another run"):
        check_folders(tiny(tmp_path / "again", "demo", run={"weights_url": url}))


def test_damage_in_the_store_is_found(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with cheap_parts(Parts()):
        asyncio.run(run_with(tiny(tmp_path, "demo", rollout={"num_rollout": 1}, run={"weights_url": url})))
    monkeypatch.setenv(FOLDER, str(tmp_path / "another-host"))
    store = RemoteFolders(f"{url}/demo")
    name = store.names()[-1]
    file = f"{name}/model.safetensors"
    store._objects.replace(file, store._objects.read(file)[:-1] + b"?")
    report = asyncio.run(audit_folder(RunFolder(tmp_path / "runs", "demo")))
    assert any(file in str(finding) for finding in report.findings)


def test_a_run_that_made_nothing_leaves_nothing_there(tmp_path: Path, url: str) -> None:
    class Broken(CountingRanks):
        async def reset(self) -> None:
            raise SlimeEventsError("rank 0 has no device")

    with cheap_parts(Parts(ranks=Broken())), pytest.raises(SlimeEventsError):
        asyncio.run(run_with(tiny(tmp_path, "demo", run={"weights_url": url})))
    assert WeightStore(f"{url}/demo").versions() == []


@pytest.mark.parametrize("flag", ["runs_dir", "save_hf"])
def test_what_cannot_be_at_a_url_is_refused(tmp_path: Path, flag: str) -> None:
    component = "run" if flag == "runs_dir" else "trainer"
    settings = tiny(tmp_path, "demo", **{component: {flag: "s3://bucket/{rollout_id}"}})
    with pytest.raises(InvalidValue, match="s3://bucket"):
        check_folders(settings)


def test_copies_of_deltas_are_not_at_a_url(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "demo", engine={"update_weight_local_checkpoint_dir": "s3://bucket/copies"})
    assert [problem.split()[0] for problem in missing_paths(settings)] == ["update_weight_local_checkpoint_dir"]
