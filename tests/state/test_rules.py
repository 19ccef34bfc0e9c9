"""Single rules of the fold: what one event changes, and what it leaves as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from schemas.event import Purpose
from schemas.groups import RejectionCause
from schemas.ids import INBOX
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.rollouts import RolloutCompleted, WeightSpan
from schemas.runs import Branched, FinishReason, RunFailed
from schemas.workers import WorkerLost
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.state.run import RunPhase, RunState, SealedState
from slime_events.loop.conductor.decide import is_broken
from slime_events.loop.prompts.draw_stats import DrawStats
from tests import made
from tests.conductor.driver import Driver, make_plan


@dataclasses.dataclass
class Scene:
    """A driver of one group of two samples, which are g0000-s0 and g0000-s1."""

    driver: Driver

    @property
    def group(self) -> GroupState:
        return self.driver.state.groups["g0000"]

    @property
    def first(self) -> SampleState:
        return self.group.samples["g0000-s0"]


@pytest.fixture
def scene() -> Scene:
    return Scene(Driver(make_plan(groups=1, samples=2)))


def test_a_cursor_never_goes_back(scene: Scene) -> None:
    """Give a line without a row no place in the order of draws; its message comes when the file is opened again."""
    driver = scene.driver
    assert driver.state.cursors == {"f": 1}
    for offset, cursor in ((5, 6), (2, 6), (-1, 6), (6, 7)):
        driver.say(PromptRejected(source=Source(path="f", line=9, offset=offset), reason="not_json"))
        assert driver.state.cursors == {"f": cursor}
    for offset, cursor in ((3, 7), (7, 8)):
        source = Source(path="f", offset=offset)
        driver.say(made.submitted(f"of-{offset}", source=source))
        assert driver.state.cursors == {"f": cursor}


def test_nobody_has_activated_anything_in_a_new_life(scene: Scene) -> None:
    driver = scene.driver
    for engine in ("one", "other"):
        driver.say(made.activated(engine=engine, seconds=0.0))
    driver.say(WorkerLost(worker="one", role="engine", reason="killed"))
    assert driver.state.activated == {"other": 0}
    driver.say(made.resumed())
    assert driver.state.activated == {}


def test_what_is_asked_for_again_is_asked_for_newer_weights() -> None:
    driver = Driver(make_plan(groups=2, samples=1, draw=3, in_prompt_order=False, partial_rollout=True))
    for group in ("g0000", "g0001"):
        driver.finish_group(group)
    driver.settle()
    driver.rest("g0002-s0")
    driver.commit()
    driver.settle()
    (sample,) = driver.state.groups["g0002"].samples.values()
    assert (sample.min_version, sample.attempt) == (1, 1)
    assert driver.state.groups["g0002"].version == 0, "of the first request"
    assert driver.state.groups["g0002"].oldest == 1, "it has no token of version 0"


def test_a_sample_without_tokens_may_still_get_the_oldest_weights(scene: Scene) -> None:
    scene.first.min_version = scene.group.samples["g0000-s1"].min_version = 1
    scene.first.add_spans([WeightSpan(0, 1, 3)])
    assert scene.group.oldest == 1
    scene.group.samples["g0000-s1"].add_spans([WeightSpan(0, 1, 2)])
    assert scene.group.oldest == 2


@pytest.mark.parametrize(
    ("versions", "oldest", "newest"),
    [((3, 1), 1, 3), ((1, 3), 1, 3), ((2, 3, 1, 2), 1, 3), ((2,), 2, 2), ((), None, None)],
)
def test_an_heir_with_older_weights_widens_the_range(
    scene: Scene, versions: tuple[int, ...], oldest: int | None, newest: int | None
) -> None:
    for version in versions:
        scene.driver.begin("g0000-s0", version)
    assert (scene.first.oldest, scene.first.newest, scene.first.length) == (oldest, newest, len(versions))


def test_a_chunk_ends_where_its_tokens_do(scene: Scene) -> None:
    for start in (0, 2):
        chunk = made.progressed("g0000-s0", [1, 2], start=start, log_probs=[0.0, 0.0])
        scene.driver.say(chunk)
        assert scene.first.length == start + 2


def test_an_end_is_an_end(scene: Scene) -> None:
    scene.driver.say(RunFailed(role="trainer", reason="no room"))
    assert (scene.driver.state.phase, scene.driver.state.failure) == (RunPhase.FAILED, "no room")
    scene.driver.say(made.finished(FinishReason.INTERRUPTED, steps=0, events=0))
    assert scene.driver.state.phase is RunPhase.FINISHED


BRANCHED = Branched(
    run="parent", where="w", position=9, version=3, weights_digest="w3", optimizer_digest="o3", cursors={"f": 7}
)


def test_a_branch_begins_where_its_parent_was() -> None:
    state, stats = RunState(run="drive"), DrawStats()
    stats.of("f", 1).times = 2
    drawn = msgspec.structs.replace(BRANCHED, draws=stats.drawn_before())
    apply(state, *made.recorded(made.started(branched=drawn), run="drive"))
    assert (state.first, state.version, state.next_step, state.steps, state.published) == (3, 3, 3, 3, -1)
    assert (state.weights_digest, state.optimizer_digest, state.cursors) == ("w3", "o3", {"f": 7})
    assert state.branched == BRANCHED, "what it knows of draws is another fold's"
    state.cursors["f"] = 8
    assert BRANCHED.cursors == {"f": 7}


def test_a_follower_s_batches_are_of_groups_that_it_does_not_have() -> None:
    state = RunState(run="drive", branched=msgspec.structs.replace(BRANCHED, follows=True))
    sealed = made.sealed(3, groups=("theirs",), samples=("theirs-s0",))
    apply(state, *made.recorded(sealed, run="drive"))
    assert state.sealed == {3: SealedState(groups=(), digest="b")}
    assert (state.next_step, state.batch_starts) == (4, {})


def test_weights_that_are_published_again_take_nothing_back(scene: Scene) -> None:
    state = scene.driver.state
    assert state.weights_digest == "d0"
    for version, committed in ((3, 3), (2, 3)):
        scene.driver.say(made.published(version, url="", digest=f"p{version}", bytes=0))
        assert (state.version, state.published, state.weights_digest) == (committed, version, f"p{version}")


def test_a_checkpoint_lets_go_of_the_batches_before_it(scene: Scene) -> None:
    state = scene.driver.state
    for version, kept in ((4, {4: 10, 5: 20}), (5, {5: 20}), (4, {5: 20}), (6, {})):
        state.batch_starts = state.batch_starts or {3: 5, 4: 10, 5: 20}
        scene.driver.say(made.saved(version, url="", weights_digest="", optimizer_digest=""))
        assert state.batch_starts == kept


@pytest.mark.parametrize("cause", RejectionCause)
def test_groups_broken_in_a_row(cause: RejectionCause) -> None:
    """A rejection by the filter and an acceptance end a row; a verdict on a group that is not there says nothing."""
    driver = Driver(make_plan(groups=4, samples=1))
    state = driver.state
    driver.say(made.rejected("g0000", RejectionCause.REWARD_FAILED))
    driver.say(made.rejected("g0001", cause))
    assert state.broken_in_a_row == (0 if cause is RejectionCause.FILTER else 2)
    row, counted = state.broken_in_a_row, dict(state.rejections)
    driver.say(made.rejected("nobody", RejectionCause.REWARD_FAILED))
    driver.say(made.accepted("nobody"))
    assert (state.broken_in_a_row, state.rejections) == (row, counted)
    assert sum(counted.values()) == state.counts.groups_rejected == 2
    driver.say(made.accepted("g0002", samples=("g0002-s0",), rewards=(1.0,)))
    assert (state.broken_in_a_row, state.counts.groups_accepted, state.accepted) == (0, 1, ["g0002"])


def test_groups_from_outside_end_no_run() -> None:
    """End no run by failing prompts from outside, and let them hide no failure of the run itself."""
    driver = Driver(make_plan(groups=4, samples=1))
    for number in range(40):
        group = f"inbox-{number:016x}"
        driver.say(made.submitted(group, text="p", source=Source(path="x"), dataset=INBOX))
        driver.say(made.rejected(group, RejectionCause.REWARD_FAILED))
    assert is_broken(driver.state, driver.plan) is None
    for number in range(driver.plan.broken_limit):
        group = f"g{number + 100:04}"
        driver.say(made.submitted(group, text="p", source=Source(path="x", offset=number)))
        driver.say(made.rejected(group, RejectionCause.REWARD_FAILED))
    assert is_broken(driver.state, driver.plan) is not None
    driver.say(made.accepted("g0001", samples=("g0001-s0",), rewards=(1.0,)))
    assert (driver.state.broken_in_a_row, driver.state.outside_in_a_row) == (0, 0)


def eval_prompt(version: int | None, index: int = 0) -> PromptSubmitted:
    return made.submitted(
        f"eval-{version}-{index}",
        source=Source(path="held", offset=index),
        purpose=Purpose.EVAL,
        dataset="held",
        version=version,
    )


def test_an_evaluation_is_of_its_version_and_begun_once(scene: Scene) -> None:
    driver = scene.driver
    state = driver.state
    before = (dict(state.cursors), list(state.waiting), state.counts.prompts_submitted)
    for prompt in (eval_prompt(2), eval_prompt(2, 1), eval_prompt(1), eval_prompt(None)):
        driver.say(prompt)
    assert {key: evaluation.groups for key, evaluation in state.evals.items()} == {
        "held-v2": ["eval-2-0", "eval-2-1"],
        "held-v1": ["eval-1-0"],
        "held-v0": ["eval-None-0"],
    }
    assert state.groups["eval-None-0"].version == 0, "the published one, where an old log does not say it"
    assert state.evals_begun == {"held": 2}, "one of an older version begins no newer one"
    assert (dict(state.cursors), list(state.waiting), state.counts.prompts_submitted) == before


def sibling(number: int, **changes: Any) -> RolloutCompleted:
    fields: dict[str, Any] = {
        "sample": f"g0000-s0-{number}",
        "group": "g0000",
        "attempt": 2,
        "length": 3,
        "spans": (WeightSpan(0, 3, 4),),
        "rollout": "g0000-s0",
    }
    return made.completed(**fields | changes)


def test_further_samples_of_a_rollout_join_at_their_place(scene: Scene) -> None:
    scene.first.min_version = 4
    driver = scene.driver
    driver.say(sibling(2))
    driver.say(sibling(1))
    assert list(scene.group.samples) == ["g0000-s0", "g0000-s0-1", "g0000-s0-2", "g0000-s1"]
    joined = scene.group.samples["g0000-s0-1"]
    assert (joined.attempt, joined.min_version, joined.oldest, joined.length) == (2, 4, 4, 3)
    assert driver.state.counts.samples_completed == 2
    assert driver.state.counts.response_tokens == 6
    driver.say(sibling(1, sample="nobody-s0-1", group="nobody", rollout="nobody-s0"))
    assert driver.state.counts.samples_completed == 2
