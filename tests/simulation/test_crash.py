"""Crash at the N-th append, for every N: what a run comes to does not depend on who died when."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.groups import GroupRejected
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutSuspended, Sampling
from schemas.steps import StepCommitted
from schemas.trainers import Fidelity, TrainerRestored
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.analysis.audit.steps import APPROXIMATE
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunPhase, RunState
from slime_events.core.tokens.trajectory import Trajectories
from slime_events.plugins.filters.decide import run_filter
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.texts import Texts
from storage.log import append_all
from storage.memory_log import MemoryLog
from tests.harness.history.checker import check
from tests.replay.replayed import policy_for, replayed
from tests.scripted_engine import Script
from tests.simulation.crash import Crash, Crashed, Fate, Half, Scene, Scope
from tests.simulation.leaving import LeavingLog
from tests.simulation.parts import CriticRanks, NoisyRanks
from tests.simulation.simulation import make_plan

SMALL = {"steps": 3, "groups": 1, "samples": 2, "sampling": Sampling(max_new_tokens=8), "checkpoint_every": 2}
EVALUATION = {"eval_every": 2, "eval_names": ("held",), "eval_exact": True}


def not_the_second(args: object, samples: Sequence[Any]) -> bool:
    """A filter that refuses one group, and every group of which it is not shown all texts."""
    return bool(samples[0].prompt != "prompt 1" and all(sample.response for sample in samples))


TEXTS = Texts()
PLAIN = Scene(
    plan=make_plan(**SMALL, **EVALUATION),
    evaluations={"held": ["one"]},
    inbox=[{"key": "k", "prompt": "from outside"}],
    judge=lambda group: run_filter(not_the_second, None, group_samples(TEXTS.with_texts(group))),
    texts=TEXTS,
)
TWO_ENGINES = Scene(
    plan=make_plan(**SMALL | {"groups": 2, "steps": 2, "checkpoint_every": None}),
    scripts=(Script(chunk=4, refused={"train-0-000001-s0-0-1": "no room"}), Script(chunk=2)),
    whole_groups=True,
)
ASYNCHRONOUS = Scene(
    plan=make_plan(**SMALL, max_staleness=2, in_prompt_order=False, publish_every=2),
    scripts=(Script(chunk=4, eos=0, stop_chance=0.2), Script(chunk=1)),
)
PARTIAL = Scene(
    plan=make_plan(
        **SMALL | {"steps": 2, "sampling": Sampling(max_new_tokens=12)},
        draw=4,
        in_prompt_order=False,
        partial_rollout=True,
        mask_offpolicy=True,
    ),
    scripts=(Script(chunk=12, eos=0, stop_chance=0.2), Script(chunk=1, seconds_per_chunk=0.02)),
)

NOISY = replace(PLAIN, ranks=NoisyRanks)
REWARDING = Scene(
    plan=make_plan(**SMALL | {"steps": 2, "checkpoint_every": None}),
    prompts=["one", {"input": "two", "label": "1", "metadata": {"rm_type": "f1"}}],
    reward=RewardSettings(rm_type="exact"),
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A killed process has no thread that continues to write; so nothing leaves the event loop here."""

    async def at_once(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", at_once)
        yield


@pytest.fixture(scope="module")
def uncrashed(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of PLAIN without a crash, with which those of any sequence of crashes are compared."""
    return figures(asyncio.run(run_scene(PLAIN, tmp_path_factory.mktemp("uncrashed") / "whole", Fate())))


def state_of(log: MemoryLog) -> RunState:
    """The fold of all that is in the log."""
    state = RunState(run=log.run)
    for recorded in log.records:
        apply(state, recorded)
    return state


def events_of(log: MemoryLog, kind: type[Any]) -> list[Any]:
    """All events of a kind, in order."""
    events = (recorded.envelope.event for recorded in log.records)
    return [event for event in events if isinstance(event, kind)]


def figures(log: MemoryLog) -> dict[str, Any]:
    """Return what must not depend on crashes: weights, what they were made of, what they are worth, where the
    prompts are.
    """
    state, trajectories = state_of(log), Trajectories(unpack)
    for recorded in log.records:
        trajectories.apply(recorded.envelope.event, recorded.position)
    counts = state.counts
    return {
        "phase": state.phase,
        "versions": (state.version, state.published),
        "weights": state.weights_digest,
        "optimizer": state.optimizer_digest,
        "trained": [
            (batch.step, sample, trajectories.by_sample[sample].tokens.tolist(), reward)
            for batch in events_of(log, BatchSealed)
            for sample, reward in zip(batch.samples, batch.rewards, strict=True)
        ],
        "rejected": [(event.group, event.cause) for event in events_of(log, GroupRejected)],
        "evaluations": sorted((e.dataset, e.version, e.mean, e.samples) for e in events_of(log, EvalCompleted)),
        "cursors": {Path(source).name: cursor for source, cursor in state.cursors.items()},
        "prompts": counts.prompts_submitted,
        "checkpoints": counts.checkpoints,
    }


async def run_scene(scene: Scene, folder: Path, fate: Fate) -> MemoryLog:
    """The log that a scene leaves under a fate; its history is clean, its decisions are the same again."""
    folder.mkdir(parents=True)
    crashed = Crashed(scene, folder, fate)
    try:
        await crashed.run()
    except BaseException as error:
        raise AssertionError(f"{fate.died}: {type(error).__name__}: {error}") from error
    assert not crashed.device.mixed, f"{fate.died}: {crashed.device.mixed[0]} used the device at the same time"
    findings = check(
        ((recorded.position, recorded.subject, recorded.data) for recorded in crashed.log.records),
        bound=scene.plan.staleness_bound,
    )
    assert not findings, f"{fate.died}: " + "; ".join(map(str, findings))
    again = replayed(crashed.log.records, policy_for(scene.plan, scene.judge, texts=scene.texts), every=False)
    assert again.is_equal, f"{fate.died}: {again.differences[0]}"
    return crashed.log


async def at_every_append(scene: Scene, folder: Path, judge: Callable[[MemoryLog], object], **crash: Any) -> int:
    """Run the scene once for each append and half until no append is left to die at; how many there are."""
    expected = judge(await run_scene(scene, folder / "whole", Fate()))
    for number in itertools.count(1):
        fates = [Fate([Crash(number, half, **crash)]) for half in Half]
        for fate in fates:
            log = await run_scene(scene, folder / f"{number}-{fate.crashes[0].half.name}", fate)
            assert judge(log) == expected, f"{fate.died or 'without a crash'}: the run comes to something else"
        if not any(fate.died for fate in fates):
            return number - 1
    raise AssertionError


def invariants(log: MemoryLog) -> dict[str, Any]:
    """Check what holds in asynchronous mode, where luck decides what is trained: all steps, from samples that
    differ.
    """
    state, batches = state_of(log), events_of(log, BatchSealed)
    trained = [sample for batch in batches for sample in batch.samples]
    assert len(set(trained)) == len(trained)
    return {"phase": state.phase, "version": state.version, "published": state.published, "trained": len(trained)}


async def test_the_scenes_hold_what_they_are_for(tmp_path: Path) -> None:
    log = await run_scene(PLAIN, tmp_path / "plain", Fate())
    figures_ = figures(log)
    assert figures_["phase"] is RunPhase.FINISHED
    assert len(figures_["trained"]) == 6
    assert figures_["trained"][0][1].startswith("inbox-")
    assert [group for group, _ in figures_["rejected"]] == ["train-0-000001"]
    assert [version for _, version, _, _ in figures_["evaluations"]] == [0, 2, 3]
    assert figures_["checkpoints"] == 1
    assert {recorded.envelope.producer.partition("-")[0] for recorded in log.records} == {
        "launcher", "conductor", "inbox", "grader", "trainer", "archivist", "engine",
    }  # fmt: skip
    two = await run_scene(TWO_ENGINES, tmp_path / "two", Fate())
    assert len({event.engine for event in events_of(two, RolloutFailed)}) <= 1


async def test_every_process_dies_at_each_append(tmp_path: Path) -> None:
    assert await at_every_append(PLAIN, tmp_path, figures) > 25


@pytest.mark.parametrize("role", ["conductor", "grader", "trainer", "archivist", "engine0"])
async def test_one_process_dies_at_each_of_its_appends(tmp_path: Path, role: str) -> None:
    assert await at_every_append(PLAIN, tmp_path, figures, scope=Scope.ROLE, role=role) > 2


async def test_a_producer_asks_again_until_an_inbox_that_lives_has_answered(tmp_path: Path) -> None:
    """Whether its prompt was in the log when the first one died, or not: it is there once."""
    scene = replace(PLAIN, inbox=[{"key": f"k{n}", "prompt": f"from outside {n}"} for n in range(3)])

    def judge(log: MemoryLog) -> dict[str, Any]:
        keys = [event.source.key for event in events_of(log, PromptSubmitted) if event.dataset == INBOX]
        assert keys == ["k0", "k1", "k2"]
        return figures(log)

    assert await at_every_append(scene, tmp_path, judge, scope=Scope.ROLE, role="inbox") == 3


@pytest.mark.parametrize("role", ["conductor", "grader", "trainer", "engine0", "engine1"])
async def test_one_of_several_engines_and_graders_of_groups(tmp_path: Path, role: str) -> None:
    assert await at_every_append(TWO_ENGINES, tmp_path, figures, scope=Scope.ROLE, role=role) > 1


async def test_a_critic_is_committed_with_its_step_whenever_the_trainer_dies(tmp_path: Path) -> None:
    def judge(log: MemoryLog) -> dict[str, Any]:
        return figures(log) | {"critics": [event.critic_digest for event in events_of(log, StepCommitted)]}

    scene = replace(PLAIN, ranks=CriticRanks)
    assert await at_every_append(scene, tmp_path, judge, scope=Scope.ROLE, role="trainer") > 2


@pytest.mark.parametrize("scope", Scope)
async def test_ranks_that_never_train_the_same_again(tmp_path: Path, scope: Scope) -> None:
    restored: list[TrainerRestored] = []

    def judge(log: MemoryLog) -> dict[str, Any]:
        auditor = Audit(log.run, rules=Rules(NOISY.plan, AlgorithmSettings()))
        for record in log.records:
            auditor.apply(record)
        report = auditor.finish()
        assert report.clean, report.findings
        events = events_of(log, TrainerRestored)
        restored.extend(events)
        vague = [event.version for event in events if event.optimizer is Fidelity.APPROXIMATE]
        assert vague == [event.version for event in events if event.retrained], "noise is in every step trained again"
        (steps,) = (check for check in report.checks if check.name == "steps")
        expected = sum(event.version > min(vague) for event in events_of(log, StepCommitted)) if vague else 0
        assert (steps.counts["restored"], steps.counts[APPROXIMATE]) == (len(events), expected)
        return {name: value for name, value in figures(log).items() if name not in ("weights", "optimizer")}

    assert await at_every_append(NOISY, tmp_path, judge, scope=scope, role="trainer") > 5
    assert {event.optimizer for event in restored} == set(Fidelity)
    assert {event.weights for event in restored} == {Fidelity.EXACT}


async def test_an_engine_that_gives_rewards_dies_at_each_of_its_appends(tmp_path: Path) -> None:
    def judge(log: MemoryLog) -> dict[str, Any]:
        envelopes = [recorded.envelope for recorded in log.records]
        by_engine = [
            (before, reward)
            for before, reward in itertools.pairwise(envelopes)
            if isinstance(reward.event, RewardAssigned) and reward.producer.startswith("engine")
        ]
        # What is not over at once is the grader's.
        assert {reward.event.entity() for _, reward in by_engine} == {f"train-0-000000-s{n}" for n in range(2)}
        for completed, reward in by_engine:  # in one append, so with nothing between them
            assert isinstance(completed.event, RolloutCompleted)
            assert (completed.event.sample, completed.id) == (reward.event.entity(), reward.cause)
        return figures(log)

    assert await at_every_append(REWARDING, tmp_path, judge, scope=Scope.ROLE, role="engine0") > 4


async def test_every_process_dies_at_each_append_of_an_asynchronous_run(tmp_path: Path) -> None:
    assert await at_every_append(ASYNCHRONOUS, tmp_path, invariants) > 10


async def test_every_process_dies_at_each_append_while_rollouts_rest(tmp_path: Path) -> None:
    rests: list[Any] = []

    def judge(log: MemoryLog) -> dict[str, Any]:
        rests.extend(events_of(log, RolloutSuspended))
        return invariants(log)

    assert await at_every_append(PARTIAL, tmp_path, judge) > 10
    assert rests


@pytest.mark.soak  # the next test has snapshots too
async def test_every_process_dies_at_each_append_and_begins_with_a_snapshot(tmp_path: Path) -> None:
    assert await at_every_append(replace(PLAIN, snapshots=7), tmp_path, figures) > 25
    assert any(tmp_path.glob("*/snapshots/*"))


async def test_every_process_dies_at_each_append_while_events_leave_the_log(tmp_path: Path) -> None:
    left: list[int] = []

    def judge(log: MemoryLog) -> dict[str, Any]:
        assert isinstance(log, LeavingLog)
        left.append(log.left)
        return figures(log)

    assert await at_every_append(replace(PLAIN, snapshots=5, keep_steps=1), tmp_path, judge) > 25
    assert min(left) > 0
    assert any(tmp_path.glob("*/snapshots/*"))


async def test_a_turn_of_the_conductor_is_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a turn that needs several appends: here each event is one of its own."""

    async def one_by_one(log: Any, appends: Any, **_: Any) -> list[int]:
        return await append_all(log, appends, at_most=1)

    monkeypatch.setattr("actors.conductor.append_all", one_by_one)
    assert await at_every_append(PLAIN, tmp_path, figures, role="conductor") > 15


crashes = st.builds(Crash, st.integers(1, 25), st.sampled_from(Half), st.sampled_from(Scope))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(crashes, min_size=2, max_size=6))
def test_any_sequence_of_crashes(
    tmp_path_factory: pytest.TempPathFactory, uncrashed: dict[str, Any], sequence: list[Crash]
) -> None:
    fate = Fate(sequence)
    log = asyncio.run(run_scene(PLAIN, tmp_path_factory.mktemp("crashes") / "crashed", fate))
    assert figures(log) == uncrashed, fate.died
