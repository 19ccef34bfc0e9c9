"""Test what a branch's trainer begins with, by real ranks from the log of a real run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.trainer.local_ranks import LocalRanks, local_ranks
from slime_events.app.launch.branch_checkpoint import put_branch_checkpoint
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import open_run
from slime_events.model.branch_point import read_point
from storage.weights.stored_version import digest_of
from tests.run.whole import Finished

pytestmark = pytest.mark.real


async def test_the_beginning_has_the_weights_and_the_optimizer_of_the_version(
    finished: Finished, tmp_path: Path
) -> None:
    async with open_run(str(finished.folder)) as parent:
        branched, settings = await read_point(parent.log, 2, parent.where), parent.settings
    async with local_ranks(settings) as ranks:

        @asynccontextmanager
        async def the_same(settings: TrainSettings) -> AsyncIterator[LocalRanks]:
            yield ranks

        await put_branch_checkpoint(branched, settings, str(tmp_path), note=lambda _: None, make_ranks=the_same)
        await ranks.reset()
        assert digest_of(await ranks.export_weights()) != branched.weights_digest
        await ranks.load_checkpoint(f"{tmp_path}/v000002")
        digests = digest_of(await ranks.export_weights()), await ranks.optimizer_digest()
    assert digests == (branched.weights_digest, branched.optimizer_digest)
