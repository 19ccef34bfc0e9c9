"""Test what another reward, filter or advantage would have made of recorded runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue, PlugPointMissing, UnknownGrader
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.rewards import RewardAssigned
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.report import report_text
from slime_events.analysis.rescore.rescore import rescore
from slime_events.loop.learner.overrides import read_overrides
from tests.rescore.recorded import NONZERO_STD, SAMPLES, coin_without, opened, record, settings, with_filter
from tests.simulation.simulation import Simulation


@pytest.fixture
async def plain(tmp_path: Path) -> Simulation:
    return await record(tmp_path, settings())


async def test_nothing_changed_changes_nothing(tmp_path: Path) -> None:
    run = with_filter(settings(), NONZERO_STD)
    sim = await record(tmp_path, run)
    change = make_change(run)
    assert change.regrade
    out = io.BytesIO()
    report = await rescore(opened(sim, run), change, out)
    assert report.is_same
    assert report.mismatched == 0
    assert not out.getvalue()
    assert report.samples.graded == len(sim.events(RewardAssigned))
    assert report.groups.accepted_after == len(sim.events(GroupAccepted))
    assert sim.events(GroupRejected), "the filter has to have had work"
    assert report.groups.decided == report.groups.accepted_after + len(sim.events(GroupRejected))
    assert [step.samples for step in report.steps] == [6] * 5
    assert "Nothing would differ" in report_text(report)


async def test_a_filter_where_there_was_none(plain: Simulation) -> None:
    run, out = settings(), io.BytesIO()
    report = await rescore(opened(plain, run), make_change(run, ["--dynamic-sampling-filter-path", NONZERO_STD]), out)
    flat = {event.group for event in plain.events(GroupAccepted) if len(set(event.rewards)) == 1}
    assert flat
    assert not report.regraded
    assert report.groups.rejected_now == len(flat)
    assert report.groups.accepted_now == 0
    assert report.groups.rejected_examples[0].reason.startswith("zero_std_")
    assert read_overrides(out.getvalue(), "changes").verdicts == dict.fromkeys(flat, False)
    for step, sealed in zip(report.steps, plain.events(BatchSealed), strict=True):
        assert step.lost == len(flat & set(sealed.groups))
        assert step.samples_after == SAMPLES * (len(sealed.groups) - step.lost)
        assert step.advantages == 0
        assert step.ess_after == pytest.approx(step.ess_before), "flat groups weigh nothing"
    first = next(e.step for e in plain.events(BatchSealed) if flat & set(e.groups))
    assert report.first_difference == first
    assert f"From step {first} on" in report_text(report)


async def test_no_filter_where_there_was_one(tmp_path: Path) -> None:
    run = with_filter(settings(), NONZERO_STD)
    sim = await record(tmp_path, run)
    change = make_change(with_filter(run, None))
    change = type(change)(run, change.after, regrade=False)
    report = await rescore(opened(sim, run), change)
    rejected = sim.events(GroupRejected)
    assert report.groups.accepted_now == len(rejected)
    assert report.groups.rejected_now == 0
    assert sum(step.offered for step in report.steps) == len(rejected)
    assert {step.step for step in report.steps if step.offered} >= {report.groups.accepted_examples[0].step}


GRADER = """
def grade(args, sample):
    number = int(sample.prompt.rpartition(" ")[2])
    if number == 1:
        raise ValueError("no")
    return 2.0 if sample.index == 3 * sample.group_index else 1.0
"""


async def test_another_reward(plain: Simulation, tmp_path: Path) -> None:
    (tmp_path / "other_grader.py").write_text(GRADER)
    run, out = settings(), io.BytesIO()
    change = make_change(run, ["--custom-rm-path", f"{tmp_path}/other_grader.py:grade"])
    report = await rescore(opened(plain, run), change, out)
    graded = plain.events(RewardAssigned)
    expected = {e.sample: 2.0 if e.sample.endswith("-s0") else 1.0 for e in graded if e.group != "train-0-000001"}
    assert report.samples.failed == {"raised": SAMPLES}
    assert report.samples.changed == SAMPLES + sum(
        expected[e.sample] != e.value for e in graded if e.sample in expected
    )
    changes = read_overrides(out.getvalue(), "changes")
    assert changes.rewards == {
        e.sample: expected[e.sample] for e in graded if expected.get(e.sample, e.value) != e.value
    }
    assert changes.verdicts == {"train-0-000001": False}
    (turned,) = report.groups.rejected_examples
    assert turned.after == [None] * SAMPLES
    assert "raised" in turned.reason
    assert report.rewards_after.count == len(expected)
    assert report.rewards_after.mean == pytest.approx(4 / 3)
    assert report.graders_before[0][0] == "test"
    assert "other_grader" in report.graders_after[0][0]


BY_RANK = """
def grade(args, samples):
    order = sorted(samples, key=lambda sample: len(set(sample.response)))
    return [order.index(sample) / args.n_samples_per_prompt for sample in samples]
"""


async def test_a_reward_over_whole_groups(plain: Simulation, tmp_path: Path) -> None:
    (tmp_path / "by_rank.py").write_text(BY_RANK)
    change = make_change(settings(), ["--group-rm", "--custom-rm-path", f"{tmp_path}/by_rank.py:grade"])
    report = await rescore(opened(plain, settings()), change)
    groups = report.groups.accepted_after
    assert [(low, count) for low, _, count in report.rewards_after.bars if count] == [
        (rank / SAMPLES, groups) for rank in range(SAMPLES)
    ]


async def test_a_group_that_had_no_reward_may_be_accepted(tmp_path: Path) -> None:
    run = settings()
    sim = await record(tmp_path, run, coin_without("train-0-000002-"))
    assert [event.cause for event in sim.events(GroupRejected)] == [RejectionCause.REWARD_FAILED]
    kept = await rescore(opened(sim, run), make_change(run, ["--disable-grpo-std-normalization"]))
    assert not kept.regraded
    assert kept.groups.accepted_now == 0
    assert kept.samples.failed == {"none": SAMPLES}
    report = await rescore(opened(sim, run), make_change(run))
    assert report.groups.accepted_now == 1
    assert report.samples.failed == {}
    assert report.samples.changed == report.samples.failed_before == SAMPLES


async def test_another_normalisation_changes_advantages_alone(plain: Simulation) -> None:
    run = settings()
    report = await rescore(opened(plain, run), make_change(run, ["--disable-grpo-std-normalization"]))
    assert not report.samples.changed
    assert not report.groups.rejected_now
    for step, sealed in zip(report.steps, plain.events(BatchSealed), strict=True):
        assert normalize_rewards(sealed.raw_rewards, [SAMPLES] * 2, run.algorithm) == list(sealed.rewards)
        assert step.advantages == sum(reward != 0 for reward in sealed.rewards)
    assert report.first_difference == next(s.step for s in report.steps if s.advantages)


@pytest.mark.parametrize(
    ("flags", "error", "says"),
    [
        (["--lr", "1"], InvalidValue, "--lr: recorded rollouts do not show"),
        (["--rm-type", "nobody"], UnknownGrader, "no grader is called 'nobody'"),
        (["--dynamic-sampling-filter-path", "nowhere:at_all"], PlugPointMissing, "nowhere"),
    ],
)
async def test_what_cannot_be(plain: Simulation, flags: list[str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        await rescore(opened(plain, settings()), make_change(settings(), flags))
