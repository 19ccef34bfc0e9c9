"""A real run with nothing but its run folder on a disk: model, log archive, blobs, weights and checkpoints are in S3.

Its weights are deltas.

It is killed and resumed, and then audited and trained again from another folder, with an empty cache.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from msgspec.structs import replace

from schemas.checkpoints import CheckpointSaved
from schemas.trainers import TrainerRestored
from schemas.weights import WeightsPublished
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from storage.folders.cache import FOLDER
from storage.folders.remote import RemoteFolders
from tests.run.test_killed import Command, kill
from tests.run.tiny import MARK, events_of, of
from tests.run.whole import whole_settings
from tests.storage.seaweed import as_s3

pytestmark = [pytest.mark.real, pytest.mark.soak]

STEPS = 3
S3 = {name: f"s3://slime/{name.removesuffix('_url')}" for name in ("archive_url", "blob_url", "weights_url")}


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[None]:
    """Started before the mark is set: it is not killed with the run."""
    with as_s3(tmp_path / "s3"):
        yield


@pytest.fixture
def mark(s3: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    kill(mark)


def train(folder: Path, settings: TrainSettings) -> Command:
    (folder / "settings.toml").write_text(to_toml(settings))
    return Command(folder, "train", "--config", str(folder / "settings.toml"), "--plain")


def output_of(folder: Path, *words: str) -> str:
    command = Command(folder, *words)
    assert command.ends() == 0, command.output_text
    return command.output_text


def test_a_run_in_s3_is_killed_resumed_audited_and_retrained(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, remote, other = tmp_path / "local", tmp_path / "remote", tmp_path / "other"
    other.mkdir()
    reference = train(local, whole_settings(local, "whole", STEPS, chunk_tokens=4))
    assert reference.ends() == 0, reference.output_text
    expected = {e.version: e.digest for e in of(events_of(local / "runs" / "whole"), WeightsPublished)}
    settings = whole_settings(remote, "whole", STEPS, chunk_tokens=4)
    run = replace(settings.run, **S3, cache_dir=str(remote / "cache"))
    fsspec.filesystem("s3").put(f"{settings.engine.hf_checkpoint}/", "s3://slime/models/tiny/", recursive=True)
    model = "s3://slime/models/tiny"
    trainer = replace(
        settings.trainer, save="s3://slime/checkpoints", save_interval=1, hf_checkpoint=model, load=model,
        update_weight_mode="delta",
    )  # fmt: skip
    engine = replace(settings.engine, hf_checkpoint=model)
    first = train(remote, replace(settings, run=run, trainer=trainer, engine=engine))
    folder = remote / "runs" / "whole"
    asyncio.run(first.reaches(folder, 0, lambda state: state.version >= 2))
    kill(mark)
    first.ends()
    print(output_of(remote, "resume", "whole", "--runs-dir", str(remote / "runs"), "--plain"))
    events = events_of(folder)
    assert {e.version: e.digest for e in of(events, WeightsPublished)} == expected
    assert all(e.url.startswith("s3://slime/weights/whole/v") for e in of(events, WeightsPublished))
    assert all(e.url.startswith("s3://slime/checkpoints/v") for e in of(events, CheckpointSaved))
    assert [e.checkpoint for e in of(events, TrainerRestored)] != [0], "it began with a checkpoint in S3"
    assert list((folder / "weights").iterdir()) == []
    assert not (folder / "checkpoints").exists()

    shutil.rmtree(remote)
    monkeypatch.setenv(FOLDER, str(other / "cache"))
    runs = ("--runs-dir", str(other / "runs"))
    output_of(other, "restore", "whole", "s3://slime/archive", "--trust-archive", *runs)
    print(output_of(other, "audit", "whole", *runs))
    output = output_of(other, "retrain", "whole", "--steps", f"{STEPS - 1}:", "--json", *runs)
    report = json.loads(output[output.index("{\n") :])
    assert report["equal"] is True
    assert report["origin"] == f"the checkpoint of version {STEPS - 1}"
    assert [step["step"] for step in report["steps"]] == [STEPS - 1]
    names = RemoteFolders("s3://slime/checkpoints").names()
    assert sorted({name[:7] for name in names}) == [f"v{version:06d}" for version in range(1, STEPS + 1)]
