"""A whole retraining by ranks whose weights are digests: what is compared, written and said."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.offline.retrain_run import RetrainRequest, Save, retrain
from schemas.errors import CheckpointMismatch, ImpossibleCombination
from schemas.steps import StepCommitted
from schemas.trainers import TrainerRestored
from slime_events.analysis.retrain.report import likely_causes, report_text, step_text
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.training.difference import Compared, Difference, Retrained, distance, part_differences
from storage.weights.files import view
from storage.weights.shards import TensorBytes
from storage.weights.stored_version import verify
from tests import made
from tests.retrain.changed import Care, as_log, flip_reward
from tests.retrain.conftest import Recorded, record
from tests.scripted_engine import Script
from tests.simulation.parts import NoisyRanks, ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan


def building(*built: ScriptedRanks) -> Callable[[TrainSettings], Any]:
    """Ranks, in the order in which they are asked for."""
    left = list(built)

    @contextlib.asynccontextmanager
    async def build(settings: TrainSettings) -> AsyncIterator[ScriptedRanks]:
        yield left.pop(0)

    return build


async def test_it_says_what_was_compared_and_how_fast(recorded: Recorded) -> None:
    lines: list[str] = []
    ranks = building(ScriptedRanks(disk=recorded.disk))
    report = await retrain(
        recorded.opened(), RetrainRequest("2:4"), lambda s: lines.append(step_text(s)), make_ranks=ranks
    )
    assert [line.split()[:4] for line in lines] == [["step", str(s), "->", f"v{s + 1}"] for s in (2, 3, 4)]
    text = report_text(report)
    assert "began with the checkpoint of version 2, on 1 rank" in text
    assert "3 steps re-trained, every digest equal" in text
    assert f"{report.speed_up:.1f} x as fast as the run" in text


async def test_a_difference_is_told_with_both_digests_and_its_cause(recorded: Recorded) -> None:
    log = recorded.doctored()
    flip_reward(log, 1, Care.COMMITTED)
    opened = recorded.opened(await as_log(log))
    report = await retrain(opened, RetrainRequest(from_base=True), make_ranks=building(ScriptedRanks()))
    assert report.wrong is not None
    text, (weights, _) = report_text(report), report.wrong.differences
    assert f"weights digest: recorded {weights.recorded}, now {weights.now}" in text
    assert "an event of step 1 was changed after the run" in text


def test_ranks_that_differ_are_measured_at_every_step(tmp_path: Path) -> None:
    """The run itself was restored once by ranks that differ: it comes out otherwise on any machine from there on."""

    async def run() -> Recorded:
        async with Simulation(tmp_path, make_plan(), ranks=NoisyRanks()) as sim:
            sim.start_engine(Script(chunk=8, seconds_per_chunk=0.002))
            await sim.until(StepCommitted, 3)
            await sim.kill_trainer()
            sim.start_trainer(NoisyRanks(disk=sim.ranks.disk))
            await sim.finish()
            return Recorded(sim.log, {})

    recorded = asyncio.run(run())
    (restored,) = [e.version for r in recorded.log.records if isinstance(e := r.envelope.event, TrainerRestored)]
    ranks, lines = NoisyRanks(), list[str]()
    judged = retrain(
        recorded.opened(), RetrainRequest(), lambda s: lines.append(step_text(s)), make_ranks=building(ranks)
    )
    report = asyncio.run(judged)
    assert [bool(step.differences) for step in report.steps] == [step >= restored for step in range(5)]
    apart = [step.distance.relative_l2 for step in report.steps if step.distance]
    assert len(apart) == 5 - restored
    assert all(0 < far < 1 for far in apart)
    assert ["DIFFERS" in line for line in lines] == [step >= restored for step in range(5)]
    assert report.wrong is report.steps[restored]
    assert report.causes[0].startswith(f"the run's trainer was restored at version {restored} with an approximate")


@pytest.mark.parametrize(
    ("compared", "then", "begins"),
    [
        (Compared.BATCH, "2", "events of step 3 were changed"),
        (Compared.WEIGHTS, "1", "different versions of software (torch 1 then, 2 now)"),
        (Compared.OPTIMIZER, "2", "the layout of the run's ranks was not"),
        (Compared.WEIGHTS, "2", "different hardware"),
    ],
)
def test_causes(compared: Compared, then: str, begins: str) -> None:
    wrong = Retrained(3, 4, 1, 0.0, (Difference(compared, "a", "b"),))
    started = made.started(environment={"torch": then})
    assert likely_causes(wrong, started, {"torch": "2"})[0].startswith(begins)


def test_a_user_s_function_that_was_changed_is_the_likeliest_cause() -> None:
    committed = made.committed(
        1,
        batch_digest="",
        weights_digest="w",
        optimizer_digest="o",
        functions={"custom_loss_function_path": "then", "custom_megatron_init_path": "same"},
        models={"reference": "same", "teacher": "then"},
    )
    functions = {"custom_loss_function_path": "now", "custom_megatron_init_path": "same"}
    difference, model = part_differences(committed, functions, {"reference": "same", "teacher": "now"})
    assert (model.compared, model.recorded, model.now) == (Compared.MODEL, "then", "now")
    assert "teacher" in model.detail
    assert (difference.compared, difference.recorded, difference.now) == (Compared.FUNCTION, "then", "now")
    assert "custom_loss_function_path" in difference.detail
    started = made.started({"algorithm": {"custom_loss_function_path": "own.py:loss"}})
    weights = Difference(Compared.WEIGHTS, "w", "v")
    changed, not_deterministic = (
        likely_causes(Retrained(1, 2, 1, 0.0, differences, None), started, {})[0]
        for differences in ((difference, weights), (weights,))
    )
    assert "has changed since the run" in changed
    assert "not deterministic (own.py:loss)" in not_deterministic
    assert "teacher is another model" in likely_causes(Retrained(1, 2, 1, 0.0, (model, weights)), None, {})[0]


@pytest.mark.parametrize(("version", "steps", "trained"), [(0, None, []), (3, None, [2]), (2, "0:2", [0, 1, 2])])
async def test_a_version_is_made_again(
    recorded: Recorded, tmp_path: Path, version: int, steps: str | None, trained: list[int]
) -> None:
    (tmp_path / "base").mkdir()
    ranks = ScriptedRanks(disk=dict(recorded.disk))
    opened = recorded.opened(base=tmp_path / "base")
    request = RetrainRequest(steps, save=Save(version, str(tmp_path / "out"), checkpoint=True))
    report = await retrain(opened, request, make_ranks=building(ranks))
    assert [batch.step for batch in ranks.trained] == trained
    weights, checkpoint = report.saved
    assert verify(weights, recorded.digest(version)).version == version
    assert ranks.saved == [checkpoint]


class Floats(ScriptedRanks):
    """Weights of eight numbers between 0 and 255. off: how much each is too large, after the first step."""

    def __init__(self, off: float = 0.0, disk: dict[str, bytes] | None = None) -> None:
        super().__init__(disk=disk)
        self._off = off

    async def export_weights(self) -> list[TensorBytes]:
        values = np.frombuffer(self.weights[:8], np.uint8).astype(np.float32)
        values += np.float32(self._off if self.trained else 0)
        return [("w", "F32", (8,), values.tobytes())]


def test_on_another_topology_the_distance_is_said(tmp_path: Path) -> None:
    """Nothing of the run's files is there: what it is compared with is trained first, and proved."""
    recorded, exact, other = record(tmp_path, Floats()), Floats(), Floats(off=0.5)
    shutil.rmtree(tmp_path)
    opened = recorded.opened()
    report = asyncio.run(retrain(opened, RetrainRequest("1:2", tensor=2), make_ranks=building(exact, other)))
    assert [batch.step for batch in exact.trained] == [batch.step for batch in other.trained] == [0, 1, 2]
    assert [step.distance.max_abs for step in report.steps if step.distance] == [0.5] * 3
    assert not report.exact
    assert "digests equal those of the log" in report.compared
    assert "on 2 ranks, tensor parallel 2" in report_text(report)


def test_on_another_topology_a_checkpoint_is_known_by_its_weights(tmp_path: Path) -> None:
    class Sharded(Floats):
        async def optimizer_digest(self) -> str:
            return "of other parts"

    recorded = record(tmp_path, Floats(), checkpoint_every=2)
    ranks = Sharded(disk=recorded.disk)
    report = asyncio.run(retrain(recorded.opened(), RetrainRequest("4", tensor=2), make_ranks=building(ranks)))
    assert [batch.step for batch in ranks.trained] == [4]
    assert "the checkpoint of version 4" in report_text(report)
    assert report.compared == "the weights after each step with the files that the run has written"


async def test_weights_of_another_topology_are_not_saved_as_the_runs(recorded: Recorded) -> None:
    request = RetrainRequest(tensor=2, save=Save(1, "out"))
    with pytest.raises(ImpossibleCombination, match="needs the run's own topology"):
        await retrain(recorded.opened(), request, make_ranks=building())


def test_distance() -> None:
    def tensors(first: float, second: float) -> list[TensorBytes]:
        upper = np.array([second], np.float32).view(np.uint32) >> 16
        return [
            ("a", "F32", (2,), np.array([3.0, first], np.float32).tobytes()),
            ("b", "BF16", (1,), upper.astype(np.uint16).tobytes()),
        ]

    recorded = {name: view(name, *tensor) for name, *tensor in tensors(0.0, 4.0)}
    apart = distance(recorded, tensors(0.25, 4.5))
    assert (apart.max_abs, apart.tensor) == (0.5, "b")
    assert apart.relative_l2 == pytest.approx((0.25**2 + 0.5**2) ** 0.5 / 5)
    with pytest.raises(CheckpointMismatch, match="'b' is only in the recorded weights"):
        distance(recorded, tensors(0.0, 4.0)[:1])
