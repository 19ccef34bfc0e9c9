"""The contract of all ranks: a trainer's, those for work on a log, untrained and scripted ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from actors.debug.debug_processes import UntrainedRanks
from actors.trainer.local_ranks import LocalRanks, local_ranks
from actors.trainer.ranks import Ranks, rendezvous_address, train
from actors.trainer.ray_ranks import RayRanks
from schemas.errors import CheckpointMismatch
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.training.save_progress import SaveState
from slime_events.core.training.train_batch import TrainBatch
from storage.weights.store import WeightStore
from storage.weights.stored_version import digest_of, verify
from tests import made
from tests.megatron.conftest import tiny  # noqa: F401  # a fixture
from tests.megatron.tiny import make_batch, settings_for
from tests.simulation.parts import CriticRanks, ScriptedRanks

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def scripted(model: Path) -> AsyncIterator[Ranks]:
    yield ScriptedRanks()


@asynccontextmanager
async def untrained(model: Path) -> AsyncIterator[Ranks]:
    yield UntrainedRanks(str(model))


@asynccontextmanager
async def of_a_run(model: Path) -> AsyncIterator[Ranks]:
    ranks = RayRanks([])
    await ranks.start(made.settings(trainer=settings_for(model)), rendezvous_address())
    try:
        yield ranks
    finally:
        await ranks.close()


@asynccontextmanager
async def of_a_run_with_a_critic(model: Path) -> AsyncIterator[Ranks]:
    ranks, algorithm = RayRanks([]), AlgorithmSettings(advantage_estimator="ppo")
    settings = made.settings(trainer=settings_for(model), algorithm=algorithm)
    await ranks.start(settings, rendezvous_address())
    try:
        yield ranks
    finally:
        await ranks.close()


@asynccontextmanager
async def scripted_critic(model: Path) -> AsyncIterator[Ranks]:
    ranks = CriticRanks()
    ranks.critic_only = 0
    yield ranks


class SharedProcesses:
    """A rank process that all tests of this file use in turn, since its imports take seconds."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self._ranks: LocalRanks | None = None

    async def anew(self, model: Path) -> Ranks:
        """Start the process, or reset its rank to the state in which it started."""
        if self._ranks is None:
            settings = made.settings(trainer=settings_for(model))
            self._ranks = await self.stack.enter_async_context(local_ranks(settings))
        else:
            await self._ranks.reset()
        return self._ranks


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[SharedProcesses]:
    """The rank process of all tests with `processes`; it starts with the first of them."""
    processes = SharedProcesses()
    async with processes.stack:
        yield processes


@asynccontextmanager
async def processes(model: Path, shared: SharedProcesses) -> AsyncIterator[Ranks]:
    yield await shared.anew(model)


KINDS = [
    *(scripted, scripted_critic, untrained, of_a_run, of_a_run_with_a_critic),
    pytest.param(processes, marks=pytest.mark.real),
]


@pytest_asyncio.fixture(params=KINDS, ids=lambda kind: kind.__name__, loop_scope="module")
async def ranks(
    request: pytest.FixtureRequest,
    tiny: Path,  # noqa: F811
    shared: SharedProcesses,
) -> AsyncIterator[Ranks]:
    """Ranks of each kind, in the state in which they start."""
    kind = request.param
    async with kind(tiny, shared) if kind is processes else kind(tiny) as ranks:
        yield ranks


async def state(ranks: Ranks) -> tuple[str, str, str]:
    return digest_of(await ranks.export_weights()), await ranks.optimizer_digest(), await ranks.critic_digest()


def learns(ranks: Any) -> bool:
    return not isinstance(ranks, UntrainedRanks)


async def test_a_step_s_digest_is_that_of_the_ranks_and_its_figures_are_numbers(ranks: Ranks) -> None:
    before = await state(ranks)
    result = await train(ranks, make_batch())
    assert result.optimizer_digest == await ranks.optimizer_digest()
    assert result.critic_digest == await ranks.critic_digest()
    assert result.metrics
    assert {type(value) for value in result.metrics.values()} <= {float, int}
    assert (await state(ranks) != before) is learns(ranks)


async def test_the_same_steps_from_the_beginning_come_to_the_same_bits(ranks: Ranks) -> None:
    beginning, states = await state(ranks), []
    for _ in range(2):
        for step in range(2):
            await train(ranks, make_batch(step))
        states.append(await state(ranks))
        await ranks.reset()
        assert await state(ranks) == beginning
    assert states[0] == states[1]


async def test_weights_are_tensors_with_a_name_a_dtype_a_shape_and_as_many_bytes(ranks: Ranks) -> None:
    tensors = await ranks.export_weights()
    assert len({name for name, *_ in tensors}) == len(tensors) > 0
    for _, dtype, shape, data in tensors:
        assert dtype == "F32"
        count = 4
        for size in shape:
            count *= size
        assert len(data) == count


async def test_a_version_is_written_hashed_and_measured_where_the_ranks_are(ranks: Ranks, tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path), durable=False)
    manifest = await ranks.write_weights(store, 0, None)
    assert manifest.digest == await ranks.weights_digest() == digest_of(await ranks.export_weights())
    assert verify(store.folder(0), manifest.digest) == manifest
    assert (await ranks.weights_distance(store.folder(0))).max_abs == 0.0
    await train(ranks, make_batch())
    if learns(ranks):
        assert (await ranks.weights_distance(store.folder(0))).relative_l2 > 0.0
        assert (await ranks.write_weights(store, 1, 0)).digest == await ranks.weights_digest() != manifest.digest
        assert store.versions() == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("background", [False, True])
async def test_training_goes_on_from_a_checkpoint_bit_for_bit(ranks: Ranks, tmp_path: Path, background: bool) -> None:
    folder = str(tmp_path / "v000001")
    await train(ranks, make_batch(0))
    await (ranks.begin_checkpoint if background else ranks.save_checkpoint)(folder)
    saved = await state(ranks)
    await train(ranks, make_batch(1))
    gone_on = await state(ranks)
    if background:
        assert (await ranks.finish_checkpoint(wait=True)).state is SaveState.SAVED
    await ranks.reset()
    await ranks.load_checkpoint(folder)
    assert await state(ranks) == saved
    await train(ranks, make_batch(1))
    assert await state(ranks) == gone_on


async def test_a_folder_that_is_no_checkpoint_is_refused_and_the_ranks_can_begin_anew(
    ranks: Ranks, tmp_path: Path
) -> None:
    beginning = await state(ranks)
    if learns(ranks):
        with pytest.raises(CheckpointMismatch):
            await ranks.load_checkpoint(str(tmp_path / "nothing"))
    await ranks.reset()
    assert await state(ranks) == beginning


async def test_weights_are_taken_from_a_folder_and_the_optimizer_stays(ranks: Ranks, tmp_path: Path) -> None:
    await train(ranks, make_batch(0))
    first = [(name, dtype, shape, bytes(data)) for name, dtype, shape, data in await ranks.export_weights()]
    store = WeightStore(str(tmp_path), durable=False)
    digest = store.write(1, first, None).digest
    await train(ranks, make_batch(1))
    _, optimizer, critic = await state(ranks)
    await ranks.load_weights(store.folder(1))
    assert digest_of(await ranks.export_weights()) == digest
    assert await ranks.critic_digest() == critic
    if not isinstance(ranks, ScriptedRanks):  # whose optimizer is its weights
        assert await ranks.optimizer_digest() == optimizer


async def test_an_empty_batch_leaves_all_as_it_is(ranks: Ranks) -> None:
    await train(ranks, make_batch())
    before = await state(ranks)
    result = await train(ranks, TrainBatch(step=1, samples=()))
    assert (result.metrics, result.optimizer_digest) == ({"samples": 0.0}, before[1])
    assert result.critic_digest == before[2]
    assert await state(ranks) == before
