"""Groups, samples and counts: the phase that each event brings them to, and what of it stays in the state."""

from __future__ import annotations

import msgspec
import pytest

from schemas.archives import ArchiveSealed
from schemas.arrays import pack_tokens
from schemas.prompts import PromptRejected, Source
from schemas.rollouts import FailureKind
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import Counts, RunState, SealedState
from tests import made
from tests.conductor.driver import SAMPLING, Driver, make_plan


@pytest.fixture
def driver() -> Driver:
    """A group that was asked for: g0000-s0 and g0000-s1."""
    return Driver(make_plan(groups=1, samples=2))


def test_a_group_is_what_its_prompt_says(driver: Driver) -> None:
    prompt = made.submitted(
        "mine",
        text="how many?",
        tokens=[5, 6],
        source=Source(path="g", offset=4),
        dataset="other",
        label="7",
        metadata={"level": 2},
    )
    driver.say(prompt)
    group = driver.state.groups["mine"]
    assert (group.text, group.label, group.metadata, group.dataset) == ("how many?", "7", {"level": 2}, "other")
    assert (group.prompt, group.source_path, group.position) == (prompt.tokens, "g", len(driver.log))
    assert (group.phase, group.order, group.version, group.oldest) == (GroupPhase.SUBMITTED, -1, -1, -1)
    assert driver.state.waiting == ["mine"]


def test_a_sample_from_phase_to_phase(driver: Driver) -> None:
    sample = driver.state.groups["g0000"].samples["g0000-s0"]
    assert (sample.phase, sample.requested_at) == (SamplePhase.REQUESTED, len(driver.log) - 2)
    driver.begin("g0000-s0")
    driver.begin("g0000-s0")
    assert (sample.phase, sample.length) == (SamplePhase.RUNNING, 2)
    request = driver.requests["g0000-s0"]
    driver.say(made.suspended("g0000-s0", 3))
    assert (sample.phase, sample.length, sample.suspensions) == (SamplePhase.SUSPENDED, 3, 1)
    driver.say(msgspec.structs.replace(request, attempt=1))
    assert (sample.phase, sample.attempt, sample.requested_at) == (SamplePhase.REQUESTED, 1, len(driver.log) - 1)
    driver.fail("g0000-s0", FailureKind.TOO_LONG)
    assert (sample.phase, sample.failed_as, sample.failures) == (SamplePhase.FAILED, FailureKind.TOO_LONG, 1)
    assert sample.failure == "broke"
    driver.say(msgspec.structs.replace(request, attempt=2))
    driver.complete("g0000-s0")
    assert (sample.phase, sample.length) == (SamplePhase.COMPLETED, 3)
    assert sample.digest == driver.log[-1].envelope.event.digest  # type: ignore[attr-defined]
    driver.grade("g0000-s0", 0.25)
    assert (sample.phase, sample.reward) == (SamplePhase.GRADED, 0.25)
    driver.complete("g0000-s1")
    other = driver.state.groups["g0000"].samples["g0000-s1"]
    driver.say(made.reward_failed("g0000-s1", grader="t", message="why"))
    assert (other.phase, other.failure) == (SamplePhase.UNGRADED, "raised: why")


def test_what_is_counted() -> None:
    """Count in a run in which each thing happens a different number of times, so that no two counts are equal by
    chance.
    """
    driver = Driver(make_plan(steps=1, groups=2, samples=3, eval_every=1, eval_names=("held",), max_attempts=3))
    for offset in (7, -1, -1):
        driver.say(PromptRejected(source=Source(path="f", offset=offset), reason="r"))
    driver.begin("g0000-s0")
    for _ in range(2):
        driver.fail("g0000-s1")
        driver.settle()
    driver.rest("g0000-s2")
    driver.settle()
    for sample in [sample for sample in driver.requests if not sample.startswith("eval")]:
        driver.complete(sample)
        driver.grade(sample, None if sample == "g0001-s0" else 1.0)
    driver.settle()
    driver.finish_group("g0002")
    for sample in [sample for sample in driver.requests if sample.startswith("eval")]:
        driver.complete(sample)
    driver.settle()
    driver.commit()
    for version in range(4):
        driver.say(made.saved(version, url="", weights_digest="", optimizer_digest=""))
    for segment in range(5):
        driver.say(ArchiveSealed(segment=segment, first=1, last=1, bytes=1, sha256="", url=""))
    assert driver.state.counts == Counts(
        prompts_submitted=3,
        prompts_rejected=3,
        groups_requested=3,
        groups_accepted=2,
        groups_rejected=1,
        groups_trained=2,
        samples_completed=9,
        samples_failed=2,
        suspensions=1,
        rewards_failed=1,
        response_tokens=10,
        eval_samples=2,
        checkpoints=4,
        segments=5,
    )


def test_requests_take_a_group_up_once_and_in_their_order(driver: Driver) -> None:
    for group in ("later", "first"):
        driver.say(made.submitted(group))
    for group, version in (("first", 3), ("later", 4)):
        for index in range(2):
            driver.say(made.requested(f"{group}-s{index}", sampling=SAMPLING, min_version=version + index))
    state = driver.state
    assert [group.group for group in state.in_phase(GroupPhase.REQUESTED)] == ["g0000", "first", "later"]
    assert [(group.order, group.version) for group in state.in_phase(GroupPhase.REQUESTED)] == [(0, 0), (1, 3), (2, 4)]
    assert state.waiting == []
    assert state.groups["first"].oldest == 3
    assert (state.counts.groups_requested, state.open_groups) == (3, 3)


def test_an_evaluation_leaves_its_mean() -> None:
    driver = Driver(make_plan(eval_every=1, eval_names=("held",)))
    assert len(driver.state.evals["held-v0"].groups) == 2
    for version, mean in ((0, 0.5), (7, 0.25)):
        driver.say(made.evaluated(version, mean=mean, mean_length=1, oldest_version=0, newest_version=0))
        assert driver.state.eval_means == {"held": mean}
        assert driver.state.evals == {}
        assert not [group for group in driver.state.groups if group.startswith("eval")]


@pytest.mark.parametrize("engine", ["e", "other"])
def test_an_activation_brings_a_run_on(driver: Driver, engine: str) -> None:
    driver.say(made.activated(engine=engine, seconds=0.0))
    assert driver.state.moved == len(driver.log)
    assert driver.state.activated == {engine: 0}


def test_a_verdict_and_a_batch_in_the_state() -> None:
    """Count what an event reports, in every state that may precede it."""
    driver = Driver(make_plan(groups=4, samples=1))
    for group, reward in (("g0000", 0.5), ("g0002", 0.25), ("g0001", 1.0)):
        driver.say(made.accepted(group, samples=(f"{group}-s0",), rewards=(reward,)))
    state = driver.state
    assert (state.groups["g0002"].phase, state.groups["g0002"].rewards) == (GroupPhase.ACCEPTED, (0.25,))
    driver.say(made.sealed(4, groups=("g0001", "g0000")))
    assert (state.next_step, state.accepted) == (5, ["g0002"])
    assert state.sealed == {4: SealedState(groups=("g0001", "g0000"), digest="b")}
    assert state.groups["g0001"].phase is state.groups["g0000"].phase is GroupPhase.SEALED
    assert state.batch_starts == {4: state.groups["g0000"].position}
    assert (state.open_groups, state.unsealed_groups) == (4, 2)


def test_what_a_group_adds_up_to() -> None:
    def sample(name: str, reward: float | None) -> SampleState:
        return SampleState(sample=name, reward=reward)

    samples = [sample("g-s0", 0.5), sample("g-s0-1", 0.25), sample("g-s1", 1.0), sample("g-s2", None)]
    group = GroupState(group="g", prompt=pack_tokens([1]), version=3, samples={each.sample: each for each in samples})
    assert group.graded == (0.5, 0.25, 1.0)
    assert group.rollout_rewards == [0.5, 1.0], "a rollout counts once"
    assert group.oldest == -1, "of samples that were not asked for any"
    group.samples = {}
    assert group.oldest == 3


def test_a_run_that_has_no_weights_has_made_no_step() -> None:
    state = RunState(run="r")
    assert (state.version, state.steps, state.first) == (-1, 0, 0)
