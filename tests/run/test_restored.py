"""The disk is gone, the archive on an S3 server is not: restored and resumed, a run ends as if nothing had been."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import RunIsOn
from schemas.runs import RunResumed
from schemas.steps import StepCommitted
from slime_events.core.config.settings import TrainSettings
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.model.verify import verify
from storage.archive.reader import ArchiveReader
from storage.open_log import open_run_log
from tests.cli.invoke import command
from tests.run.cheap import CountingRanks, Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny
from tests.storage.seaweed import as_s3

archive, restore, resume = command("archive"), command("restore"), command("resume")
STEPS = 4
BUCKET = "s3://slime/archive"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with as_s3(tmp_path_factory.mktemp("seaweed")):
        yield


def settings_of(folder: Path, **run: Any) -> TrainSettings:
    return tiny(folder, "gone", rollout={"num_rollout": STEPS}, run={"runs_dir": str(folder / "runs")} | run)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last weights of the run that nothing happens to."""
    with cheap_parts(Parts()):
        return str(asyncio.run(run_with(settings_of(tmp_path_factory.mktemp("through"))))["weights_digest"])


class Hanging(CountingRanks):
    """In the third step, without end."""

    async def train(self, batch: TrainBatch) -> StepResult:
        if self.step == 2:
            await asyncio.Event().wait()
        return await super().train(batch)


class Cut(Exception):
    """Ends a launch without a word in the log."""


def cut(settings: TrainSettings, url: str) -> None:
    """A run that dies in its third step, with some of its log in the archive."""

    async def strike(view: Watching) -> None:
        await view.until(lambda p: p.state.version == 2)
        while await asyncio.to_thread(lambda: ArchiveReader(url, "gone").last) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        raise Cut

    with cheap_parts(Parts(ranks=Hanging())), contextlib.suppress(Cut):
        asyncio.run(run_with(settings, strike))


def check(folder: Path, digest: str) -> None:
    events = events_of(folder)
    assert [event.step for event in of(events, StepCommitted)] == list(range(STEPS))
    assert of(events, StepCommitted)[-1].weights_digest == digest
    assert len(of(events, RunResumed)) == 1

    async def fold() -> None:
        async with open_run_log(folder, "gone") as log:
            await verify(log)

    asyncio.run(fold())


@pytest.mark.parametrize("lost", ["nats", "everything"])
def test_a_restored_run_goes_on_to_the_same_weights(
    tmp_path: Path, digest: str, s3: None, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, runs = f"{BUCKET}/{lost}", tmp_path / "runs"
    cut(settings_of(tmp_path, archive_url=url, archive_seconds=0.2), url)
    with pytest.raises(RunIsOn, match="restore does not overwrite it"):
        restore(["gone", url, "--runs-dir", str(runs)])
    shutil.rmtree(runs / "gone" / "nats" if lost == "nats" else runs)
    if lost == "everything":
        runs = tmp_path / "elsewhere"
    assert restore(["gone", url, "--runs-dir", str(runs)]) == 0
    output = capsys.readouterr().out
    assert f"next: slime-events resume gone --runs-dir {runs}" in output
    assert ("an archive holds no weight versions" in output) == (lost == "everything")
    with cheap_parts(Parts()):
        assert resume(["gone", "--runs-dir", str(runs), "--plain"]) == 0
    check(runs / "gone", digest)
    assert archive(["gone", "--runs-dir", str(runs), "--verify"]) == 0
    assert "closed: the run has finished" in capsys.readouterr().out
