"""The user's functions that see a step's samples: what they decide is in the events, and trained by."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.step_samples import StepSamples
from schemas.arrays import pack_log_probs, unpack
from schemas.batches import BatchColumn, BatchSealed
from schemas.errors import PlugPointError
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted, GroupRejected
from schemas.runs import RunFailed
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.export.samples import Samples
from slime_events.analysis.views.read_records import read_sample_view
from slime_events.analysis.views.sample import view_sample
from slime_events.app.cli.commands.show_sample import sample_text
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.tokens.trajectory import read_trajectory
from slime_events.core.training.batch_columns import entries_of, make_column
from slime_events.loop.learner.batches import Batches
from slime_events.loop.training.pending_batches import PendingBatches
from slime_events.model.lookup import Lookup
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function
from slime_events.plugins.rewards.outcome import Graded
from slime_events.plugins.sample import Sample
from slime_events.plugins.step_functions import StepFunctions
from tests.replay.replayed import normalise, policy_for, replayed
from tests.simulation.parts import InstantPool
from tests.simulation.roles import keep_all
from tests.simulation.simulation import Simulation, make_plan

FILE = Path(__file__).parents[1] / "harness" / "users" / "plug_points" / "step_functions.py"
PLAN = make_plan(steps=2, groups=2, samples=3)


def named(**functions: str) -> RolloutSettings:
    return RolloutSettings(**{setting: f"{FILE}:{name}" for setting, name in functions.items()})


ALL = named(
    rollout_sample_filter_path="drop_short",
    rollout_all_samples_process_path="look_at_all",
    custom_rollout_log_function_path="log_step",
    custom_eval_rollout_log_function_path="log_eval",
)


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    """Return what the functions noted."""
    noted = importlib.import_module(load_function(f"{FILE}:log_step").__module__).SEEN
    noted.clear()
    yield noted
    noted.clear()


def simulation(folder: Path, settings: RolloutSettings, plan: Any = PLAN, **more: Any) -> Simulation:
    sim = Simulation(folder, plan, **more)
    functions = StepFunctions(settings, lambda: ArgsView({"reward_key": None}))
    finishing = StepSamples(functions, sim.log, unpack)
    sim.conductor._readers = sim.conductor._readers._replace(finishing=finishing)
    return sim


async def run(sim: Simulation) -> None:
    async with sim:
        sim.start_engine()
        await sim.finish()


async def test_what_they_decide_is_in_the_events(tmp_path: Path, seen: list[Any]) -> None:
    plan = make_plan(steps=2, groups=2, samples=3, eval_every=2, eval_names=("held_out",), eval_samples=2)
    sim = simulation(tmp_path, ALL, plan, evaluations={"held_out": ["what?"]})
    await run(sim)
    batches = sim.events(BatchSealed)
    assert [len(batch.removed) for batch in batches] == [2, 2]
    assert all(set(batch.removed) < set(batch.samples) for batch in batches)
    assert [batch.log_function.rpartition(":")[2] for batch in batches] == ["log_step", ""]
    assert {len(batch.functions) for batch in batches} == {3}
    assert [call[1:] for call in seen if call[0] == "step"] == [(0, 6, {}, True), (1, 6, {}, True)]
    for event in sim.events(EvalCompleted):
        assert event.log_function.endswith(":log_eval")
        assert ("eval", event.version, "held_out", 2, 2, [True, True]) in seen


async def test_removed_samples_are_not_trained_on_and_the_others_are(tmp_path: Path, seen: list[Any]) -> None:
    sim = simulation(tmp_path, ALL)
    await run(sim)
    pending = PendingBatches(unpack, temperature=1.0)
    for recorded in sim.log.records:
        pending.apply(recorded.envelope.event, recorded.position)
    for step, sealed in enumerate(sim.events(BatchSealed)):
        for sample in pending.make(step).samples:
            assert bool(np.any(sample.loss_mask)) is (sample.sample not in sealed.removed)
    samples, learner = Samples("sim", unpack), Batches("sim", lambda raw, sizes: list(raw))
    for recorded in sim.log.records:
        for exported in samples.apply(recorded.envelope.event, recorded.position):
            removed = sim.events(BatchSealed)[exported.step or 0].removed
            assert any(exported.loss_mask) is (exported.sample not in removed)
        derived = learner.apply(recorded)
        if derived.batch and derived.parent:
            assert derived.batch.removed == derived.parent.removed != ()
    audit = Audit("sim", fetch=unpack, files=False)
    for recorded in sim.log.records:
        audit.apply(recorded)
    assert audit.finish().findings == []


async def test_a_teacher_s_log_probs_are_on_the_samples_and_in_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "taught.py").write_text(
        "def look(args, groups, data_source):\n"
        "    samples = [one for group in groups for one in group]\n"
        "    assert all(one.teacher_log_probs == [-0.5] * one.response_length for one in samples), samples\n"
    )
    settings = RolloutSettings(rollout_all_samples_process_path=f"{tmp_path}/taught.py:look")

    def grade(sample: Sample) -> Graded:
        taught = pack_log_probs([-0.5] * sample.response_length)
        return Graded(value=len(sample.response) % 2, grader="test", teacher_log_probs=taught)

    sim = simulation(tmp_path, settings, pool=InstantPool(grade))
    await run(sim)
    assert len(sim.ranks.trained) == PLAN.steps
    for batch in sim.ranks.trained:
        for sample in batch.samples:
            assert sample.teacher_log_probs is not None
            assert set(sample.teacher_log_probs.tolist()) == {-0.5}


async def test_show_says_who_made_a_sample_and_that_it_was_removed(tmp_path: Path, seen: list[Any]) -> None:
    sim = simulation(tmp_path, ALL)
    await run(sim)
    (first, *_) = sim.events(BatchSealed)
    for name in first.samples:
        lookup = Lookup(sim.log)
        view = view_sample(lookup.run, await lookup.sample(name), await read_trajectory(sim.log, name, unpack))
        assert view.removed is (name in first.removed)
        assert {token.trained for token in view.tokens} == {not view.removed}
        assert ("removed the sample" in sample_text(view)) is view.removed


async def test_rejected_groups_are_seen_by_the_step_that_they_are_missing_in(tmp_path: Path, seen: list[Any]) -> None:
    def judge(group: Any) -> Any:
        decision = keep_all(group)
        if group.order % 2:
            return decision
        return msgspec.structs.replace(decision, keep=False, reason="even")

    sim = simulation(tmp_path, ALL, judge=judge)
    await run(sim)
    shown = [call[1] for call in seen if call[0] == "all"]
    counts = [call[3] for call in seen if call[0] == "step"]
    assert len(sim.events(GroupRejected)) >= sum(len(groups) - 2 for groups in shown) > 0
    assert all(len(group) == 3 and None not in group for groups in shown for group in groups)
    assert [count["rollout/dynamic_filter/drop_even"] for count in counts] == [len(groups) - 2 for groups in shown]
    assert len(sim.events(GroupAccepted)) >= 4


@pytest.mark.parametrize(
    ("setting", "name", "message"),
    [
        ("rollout_sample_filter_path", "changes_rewards", "changed `reward` of samples"),
        ("rollout_sample_filter_path", "drops_groups", "the list of samples"),
        ("rollout_sample_filter_path", "raises", r"raised KeyError: 'difficulty' \(step_functions.py:"),
        ("rollout_all_samples_process_path", "adds_prompts", "slime-events produce"),
        ("custom_convert_samples_to_train_data_path", "convert_other_tokens", "'tokens'.*--rollout-sample-hook-path"),
        ("custom_convert_samples_to_train_data_path", "convert_fewer", "each of the 6 samples"),
        ("custom_convert_samples_to_train_data_path", "convert_half_masks", "'loss_masks': 0 or 1"),
        ("custom_convert_samples_to_train_data_path", "convert_images", "no 'multimodal_train_inputs'"),
        ("custom_convert_samples_to_train_data_path", "convert_to_nan", "'rewards': a finite number"),
        ("custom_convert_samples_to_train_data_path", "convert_to_list", "a dict of lists"),
    ],
)
async def test_what_cannot_be_done_ends_the_run_with_the_reason(
    tmp_path: Path, setting: str, name: str, message: str
) -> None:
    sim = simulation(tmp_path, named(**{setting: name}))
    with pytest.raises(PlugPointError, match=message):
        await run(sim)
    (failed,) = sim.events(RunFailed)
    assert setting.replace("_", "-") in failed.reason
    assert not sim.events(BatchSealed)


def test_functions_are_checked_before_a_run() -> None:
    with pytest.raises(PlugPointError, match="is called with"):
        StepFunctions(named(custom_rollout_log_function_path="raises"), ArgsView)
    assert not StepFunctions(RolloutSettings(), lambda: None).by_setting


CONVERTING = named(custom_convert_samples_to_train_data_path="convert")


def trained_on(sim: Simulation) -> PendingBatches:
    pending = PendingBatches(unpack, temperature=1.0)
    for recorded in sim.log.records:
        pending.apply(recorded.envelope.event, recorded.position)
    return pending


async def test_train_data_of_a_function_are_in_the_batch_and_trained_on(tmp_path: Path) -> None:
    sim = simulation(tmp_path, CONVERTING)
    await run(sim)
    for step, sealed in enumerate(sim.events(BatchSealed)):
        assert sealed.converted_by.endswith(":convert")
        assert sealed.converted_by in sealed.functions
        assert sum(sealed.rewards) == pytest.approx(0.0)
        assert {column.name for column in sealed.columns} == {
            "loss_masks",
            "round_number",
            "teacher_log_probs",
            "kinds",
        }
        batch = trained_on(sim).make(step)
        assert [sample.reward for sample in batch.samples] == list(sealed.rewards)
        assert all(sample.loss_mask.tolist() == [0] + [1] * (sample.response_length - 1) for sample in batch.samples)
        assert batch.columns["kinds"] == [{"turns": index} for index in range(6)]
        assert all(
            (teacher == np.float32(-0.5)).all() and len(teacher) == sample.response_length
            for teacher, sample in zip(batch.columns["teacher_log_probs"], batch.samples, strict=True)
        )
    audit = Audit("sim", fetch=unpack, files=False)
    for recorded in sim.log.records:
        audit.apply(recorded)
    assert audit.finish().findings == []
    samples = Samples("sim", unpack)
    exported = [sample for r in sim.log.records for sample in samples.apply(r.envelope.event, r.position)]
    assert {sample.loss_mask[0] for sample in exported} == {0}
    assert replayed(sim.log.records, policy_for(PLAN)).differences == []


async def test_what_equals_the_samples_is_not_recorded_again_and_four_arguments_are_slime_s_too(
    tmp_path: Path,
) -> None:
    sim = simulation(tmp_path, named(custom_convert_samples_to_train_data_path="convert_made"))
    await run(sim)
    for sealed in sim.events(BatchSealed):
        assert sealed.columns == ()
        doubled = [2 * reward for reward in normalise(sealed.raw_rewards, [3, 3])]
        assert list(sealed.rewards) == pytest.approx(doubled)


async def test_show_has_the_masks_that_a_function_made(tmp_path: Path) -> None:
    sim = simulation(tmp_path, CONVERTING)
    await run(sim)
    (first, *_) = sim.events(BatchSealed)
    view = await read_sample_view(sim.log, first.samples[0], unpack)
    assert [token.trained for token in view.tokens] == [False] + [True] * (len(view.tokens) - 1)


async def test_a_changed_reward_of_another_batch_is_still_a_difference(tmp_path: Path) -> None:
    sim = simulation(tmp_path, CONVERTING)
    await run(sim)
    report = replayed(sim.log.records, policy_for(make_plan(steps=2, groups=1, samples=3)))
    assert report.differences


@given(st.lists(st.lists(st.integers(-(2**40), 2**40) | st.booleans(), max_size=4), min_size=1, max_size=4))
def test_a_column_of_numbers_comes_back_as_it_was(entries: list[list[int]]) -> None:
    column = make_column("mine", entries)
    back = entries_of(codec_round_trip(column), unpack)
    assert [array.tolist() for array in back] == [np.asarray(entry, back[0].dtype).tolist() for entry in entries]


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=3),
            lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=2),
            max_leaves=4,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_column_of_other_values_comes_back_as_it_was(entries: list[Any]) -> None:
    assert entries_of(codec_round_trip(make_column("mine", entries)), unpack) == entries


def codec_round_trip(column: BatchColumn) -> BatchColumn:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(column), type=BatchColumn)


async def test_a_replay_calls_nobody_again(tmp_path: Path, seen: list[Any]) -> None:
    sim = simulation(tmp_path, ALL)
    await run(sim)
    calls = len(seen)
    report = replayed(sim.log.records, policy_for(PLAN))
    assert report.differences == []
    assert report.decisions["batch.sealed"] == 2
    assert len(seen) == calls
