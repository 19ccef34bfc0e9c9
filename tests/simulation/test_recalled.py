"""Recorded rollouts of another run as samples of this one: as they were and as old as they are, through any crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import DataError, InvalidValue
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptSubmitted
from schemas.recorded import CommonVersion
from schemas.rollouts import Maker, RolloutCompleted, RolloutFailed, RolloutRequested, Sampling
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.recorded_rollouts import RecordedEnd
from slime_events.analysis.query import samples_where
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.run import RunPhase
from slime_events.core.tokens.trajectory import Trajectories
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.archived_prompts import read_archive
from slime_events.model.branch_point import read_point
from storage.memory_log import MemoryLog
from tests import made
from tests.replay.replayed import policy_for, replayed
from tests.scripted_engine import Script
from tests.simulation.crash import Scene
from tests.simulation.parts import InstantPool, ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_branch import weights_of
from tests.simulation.test_crash import at_every_append, events_of, invariants, one_thread  # noqa: F401  # a fixture
from tests.simulation.test_run import check_run
from tests.simulation.test_sampled import by_number, check_draws, sampled_feed

HALF = DataSettings(
    archive_prompts="archive/first", archive_reuse="rollouts", archive_share=0.5, archive_max_staleness=20
)
ALL_NEW = DataSettings(prompt_sampler="curriculum", curriculum_new=1.0)


async def run(folder: Path, feed: PromptFeed, **more: Any) -> Simulation:
    folder.mkdir(exist_ok=True)
    plan = make_plan(**({"steps": 6} | more.pop("plan", {})))
    async with Simulation(folder, plan, feed=feed, pool=InstantPool(by_number), **more) as sim:
        sim.start_engine(Script(chunk=4, eos=0, stop_chance=0.05))
        assert await sim.finish() is RunPhase.FINISHED
    return sim


async def first_run(tmp_path: Path, **plan: Any) -> Simulation:
    """A finished run, to recall rollouts of."""
    return await run(tmp_path / "first", sampled_feed(tmp_path, ALL_NEW, rows=20), plan=plan)


def archive_of(sim: Simulation) -> OpenedRun:
    return made.opened(sim.log, where="archive/first")


async def recalling(
    folder: Path, first: OpenedRun, data: DataSettings = HALF, *, samples: int = 3, ahead: int = 1, rows: int = 40
) -> PromptFeed:
    """A feed whose draws are rows of a file and groups of the archive, half and half."""
    folder.mkdir(exist_ok=True)
    return sampled_feed(
        folder, data, await read_archive(first, data, samples_where, samples=samples, ahead=ahead), rows=rows
    )


def ends_in(log: MemoryLog) -> dict[str, dict[str, RecordedEnd]]:
    """Return what `recorded_ends` reads of the archive of this log."""
    events = [(recorded.position, recorded.envelope.event) for recorded in log.records]
    ends = {e.sample: RecordedEnd(position, e.digest) for position, e in events if isinstance(e, RolloutCompleted)}
    return {"archive/first": ends}


def check_recalled(log: MemoryLog, first: MemoryLog) -> list[RolloutCompleted]:
    """Each is what was recorded, and no recorded group is twice in a step."""
    there, here = Trajectories(unpack), Trajectories(unpack)
    for trajectories, records in ((there, first.records), (here, log.records)):
        for recorded in records:
            trajectories.apply(recorded.envelope.event, recorded.position)
    prompts = {event.group: event for event in events_of(log, PromptSubmitted)}
    recalled = [event for event in events_of(log, RolloutCompleted) if event.origin is not None]
    for event in recalled:
        assert event.origin is not None
        was, now = there.by_sample[event.origin.sample], here.by_sample[event.sample]
        assert (now.tokens.tolist(), now.log_probs.tolist()) == (was.tokens.tolist(), was.log_probs.tolist())
        assert (now.digest, now.stop, now.text, now.prompt) == (was.digest, was.stop, was.text, was.prompt)
        assert (event.origin.position, event.origin.spans) == (was.position, was.spans)
    for batch in events_of(log, BatchSealed):
        keys = [prompts[group].source.key for group in batch.groups if prompts[group].recalled]
        assert len(set(keys)) == len(keys)
    auditor = Audit(log.run, recorded=ends_in(first))
    for recorded in log.records:
        auditor.apply(recorded)
    (checked,) = (check for check in auditor.finish().checks if check.name == "recalled")
    assert (checked.findings, checked.counts["rollouts"], checked.counts["of them not looked up"]) == (
        (),
        len(recalled),
        0,
    )
    return recalled


async def test_half_of_the_groups_are_recorded_ones(tmp_path: Path) -> None:
    first = await first_run(tmp_path)
    feed = await recalling(tmp_path / "second", archive_of(first))
    sim = await run(tmp_path / "second", feed, recorded=archive_of(first), plan={"steps": 8})
    check_run(sim, bound=20)
    assert not replayed(sim.log.records, policy_for(sim.plan)).differences
    check_draws(sim.log, await recalling(tmp_path / "second", archive_of(first)))
    recalled_events = check_recalled(sim.log, first.log)
    requested = {event.sample for event in sim.events(RolloutRequested) if event.maker is Maker.RECORDED}
    assert requested == {event.sample for event in recalled_events}
    assert requested <= {name for line in sim.lines for name in line.acked}, "an engine puts them aside"
    trained = {sample for batch in sim.events(BatchSealed) for sample in batch.samples}
    assert 0.2 < len(requested & trained) / len(trained) < 0.8
    # Both runs begin with the same base and then part: what was made there lies on the other side of it.
    prompts = {event.group: event.recalled for event in sim.events(PromptSubmitted) if event.recalled}
    assert {recalled.common for recalled in prompts.values()} == {CommonVersion(0, 0)}
    for event in recalled_events:
        assert event.origin is not None
        assert [span.version for span in event.spans] == [-span.version for span in event.origin.spans]
    assert prompts.keys() & {event.group for event in sim.events(GroupAccepted)}, "graded and judged by this run"


@pytest.mark.parametrize("draw", [None, 4])
async def test_ahead_of_the_trainer_nothing_gets_too_old(tmp_path: Path, draw: int | None) -> None:
    first = await first_run(tmp_path)
    plan = {"steps": 10, "max_staleness": 2, "in_prompt_order": False, "draw": draw, "publish_every": 2}
    bound = make_plan(**plan).ahead + 4
    data = replace(HALF, archive_max_staleness=bound, prompt_rest=0)
    feed = await recalling(tmp_path / "second", archive_of(first), data, ahead=make_plan(**plan).ahead)
    sim = await run(tmp_path / "second", feed, recorded=archive_of(first), plan=plan)
    check_run(sim, bound=bound)
    assert check_recalled(sim.log, first.log)
    assert not sim.events(GroupRejected)
    newest = max(batch.step for batch in sim.events(BatchSealed) if any("again" in name for name in batch.groups))
    assert newest < sim.plan.steps - 1, "in the end all that was recorded is too old, and only fresh ones are drawn"


async def test_a_branch_recalls_of_its_parent(tmp_path: Path) -> None:
    """Before the join a version there is that version here; what the parent made later lies on the other side of it."""
    first = await first_run(tmp_path, checkpoint_every=1)
    point = replace(await read_point(first.log, 3, "archive/first"), cursors={})
    folder = tmp_path / "second"
    ranks = ScriptedRanks(disk={f"{folder}/checkpoints/v000003": weights_of(first, point)})
    started = made.started(branched=point)
    feed = await recalling(folder, archive_of(first))
    sim = await run(folder, feed, recorded=archive_of(first), plan={"steps": 8}, ranks=ranks, started=started)
    recalled = check_recalled(sim.log, first.log)
    versions = {
        (there.version, here.version)
        for event in recalled
        for there, here in zip(event.origin.spans if event.origin else (), event.spans, strict=True)
    }
    assert min(versions)[0] < 3 < max(versions)[0]
    assert all(here == (there if there <= 3 else 6 - there) for there, here in versions)


SMALL = {"groups": 2, "samples": 1, "steps": 1, "sampling": Sampling(max_new_tokens=4)}


async def test_whoever_dies_none_is_lost_and_none_is_there_twice(tmp_path: Path) -> None:
    first = await first_run(tmp_path, **SMALL | {"steps": 2})
    feed = await recalling(tmp_path / "rows", archive_of(first), samples=1)
    scene = Scene(plan=make_plan(**SMALL), feed=lambda _: feed, recorded=archive_of(first))

    def judge(log: MemoryLog) -> dict[str, Any]:
        recalled = check_recalled(log, first.log)
        assert recalled
        assert len({event.sample for event in recalled}) == len(recalled)
        return invariants(log)

    assert await at_every_append(scene, tmp_path / "crashes", judge, role="conductor") > 4


async def test_what_can_never_be_drawn_is_refused(tmp_path: Path) -> None:
    first = archive_of(await first_run(tmp_path, steps=2))
    with pytest.raises(InvalidValue, match=r"--archive-max-staleness 3 is too small: .* up to 4 steps later"):
        await recalling(tmp_path / "b", first, replace(HALF, archive_max_staleness=3), ahead=4)
    with pytest.raises(DataError, match="has 4 rollouts of its own: give the --n-samples-per-prompt"):
        await recalling(tmp_path / "b", first, samples=4)
    with pytest.raises(DataError, match="this run has no weights in common with run sim at archive/first"):
        (await recalling(tmp_path / "b", first, replace(HALF, archive_share=1.0))).take({}, 1)


async def test_what_is_no_more_there_ends_its_group_with_the_reason(tmp_path: Path) -> None:
    first = await first_run(tmp_path)
    feed = await recalling(tmp_path / "second", archive_of(first))
    sim = await run(tmp_path / "second", feed, plan={"steps": 4})
    failed = sim.events(RolloutFailed)
    assert failed
    assert all(f"{event.message}".endswith("but the settings now name no run") for event in failed)
    rejected = {event.group for event in sim.events(GroupRejected, cause=RejectionCause.ROLLOUT_FAILED)}
    assert rejected == {event.group for event in failed}
