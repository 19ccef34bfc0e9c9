"""Which checkpoint is trusted: one that is what was committed, and holds what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.trainer.checkpoints import CheckpointFolders, restore
from slime_events.loop.training.training_state import Digests, TrainingState
from storage.weights.stored_version import digest_of
from tests import made
from tests.simulation.parts import ScriptedRanks

WEIGHTS = b"\1" * 32
SAID = Digests(digest_of([("w", "F32", (8,), WEIGHTS)]), WEIGHTS.hex())


@pytest.mark.parametrize(
    ("committed", "saved", "version"),
    [
        (SAID, SAID, 1),
        (Digests("other", SAID.optimizer), SAID, 0),
        (Digests(SAID.weights, "other"), SAID, 0),
        (Digests(SAID.weights, "other"), Digests(SAID.weights, "other"), 0),
        (Digests("other", SAID.optimizer), Digests("other", SAID.optimizer), 0),
    ],
)
async def test_only_what_was_committed_and_is_there_is_gone_on_from(
    tmp_path: Path, committed: Digests, saved: Digests, version: int
) -> None:
    folders = CheckpointFolders(str(tmp_path))
    ranks = ScriptedRanks(disk={folders.of(1): WEIGHTS})
    checkpoint = made.saved(1, url=folders.of(1), weights_digest=saved.weights, optimizer_digest=saved.optimizer)
    trained = TrainingState(committed={1: committed}, saved={1: checkpoint})
    assert await restore(ranks, trained, folders, newest=1) == version
    assert ranks.weights == (WEIGHTS if version else b"\0" * 32), "ranks that were touched are as they began"
    assert await restore(ranks, trained, folders, newest=0) == 0


@pytest.mark.parametrize(("form", "ranks_of_data", "version"), [(1, 2, 1), (1, 1, 0), (2, 2, 0)])
async def test_of_several_ranks_of_an_older_version_the_weights_are_compared(
    tmp_path: Path, form: int, ranks_of_data: int, version: int
) -> None:
    """Their digests of the optimizer were of each rank's part."""
    folders = CheckpointFolders(str(tmp_path))
    mark = {"format": form, "tensor_model_parallel_size": 1, "data_parallel_size": ranks_of_data}
    Path(folders.of(1)).mkdir()
    (Path(folders.of(1)) / "trainer.json").write_text(json.dumps(mark))
    ranks = ScriptedRanks(disk={folders.of(1): WEIGHTS})
    checkpoint = made.saved(1, url=folders.of(1), weights_digest=SAID.weights, optimizer_digest="of parts")
    trained = TrainingState(committed={1: Digests(SAID.weights, "of parts")}, saved={1: checkpoint})
    assert await restore(ranks, trained, folders, newest=1) == version


def test_a_checkpoint_is_found_where_it_was_saved_or_where_the_run_s_folder_is_now(tmp_path: Path) -> None:
    folders = CheckpointFolders(str(tmp_path))
    there = made.saved(1, url=str(tmp_path / "there"), weights_digest="", optimizer_digest="")
    assert folders.find(there) == folders.of(1)
    (tmp_path / "there").mkdir()
    assert folders.find(there) == there.url


def test_the_version_reached_is_the_newest_that_was_committed_or_said() -> None:
    published = {version: made.published(version, url="", digest="", bytes=0) for version in (0, 2)}
    assert TrainingState(committed={1: SAID, 2: SAID, 3: SAID}, published=published).version == 3
    assert TrainingState(committed={1: SAID, 2: SAID, 3: SAID}, published=published).newest_published == 2
    assert TrainingState(published=published).version == 2
    assert (TrainingState().version, TrainingState().newest_published) == (-1, -1)
