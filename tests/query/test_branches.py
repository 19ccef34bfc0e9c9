"""A branch answers with its own log, and with its past where it is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.batches import BatchSealed
from schemas.errors import RunNotFound
from schemas.runs import FinishReason, RunStarted
from slime_events.analysis.query import samples_where, tables_of
from tests import made
from tests.cli.small_run import GROUPS, RUN, events
from tests.lineage.long import step_events
from tests.lineage.opened import archived_parent, branch, opened

FIRST_STEP = next(number for number, event in enumerate(events(), 1) if isinstance(event, BatchSealed))


async def test_the_past_ends_where_the_branch_begins(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    child = await opened(branch(where, version=1, position=FIRST_STEP + 3), run="child")
    async with tables_of(child, with_parent=True, cache=tmp_path / "tables") as tables:
        runs = (await tables.sql("SELECT run, parent, parent_version FROM runs ORDER BY ALL")).rows()
        versions = (await tables.sql("SELECT run, version, step FROM versions ORDER BY version, run")).rows()
        last = (await tables.sql("SELECT run, max(position) FROM events GROUP BY run ORDER BY run")).rows()
    assert runs == [("child", RUN, 1), (RUN, None, None)]
    assert versions == [(RUN, 0, None), ("child", 1, None), (RUN, 1, 0)]
    assert last == [("child", 2), (RUN, FIRST_STEP + 3)]
    async with tables_of(child, cache=tmp_path / "tables") as tables:
        assert (await tables.sql("SELECT run, version FROM versions")).rows() == [("child", 1)]


async def test_what_a_learner_says_is_about_the_samples_of_the_run_that_it_follows(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    events_ = [
        *branch(where, version=0, position=3, follows=True),
        made.rejected(GROUPS[0], reason="mine"),
        made.sealed(groups=(GROUPS[3],), samples=(f"{GROUPS[3]}-s1",), rewards=(0.5,), raw_rewards=(9.0,)),
    ]
    learner = await opened(events_, run="learner")
    async with tables_of(learner, with_parent=True, cache=tmp_path / "tables") as tables:
        trained = (await tables.sql("SELECT run, sample, sample_run FROM trained WHERE run = 'learner'")).rows()
        samples = await tables.sql(
            "SELECT run, sample, verdict_reason, step, normalised_reward FROM samples "
            f"WHERE sample IN ('{GROUPS[0]}-s0', '{GROUPS[3]}-s1', '{GROUPS[4]}-s0') ORDER BY sample"
        )
        assert samples.rows() == [
            (RUN, f"{GROUPS[3]}-s1", None, 0, 0.5),
            (RUN, f"{GROUPS[0]}-s0", "mine", None, None),
            (RUN, f"{GROUPS[4]}-s0", None, None, None),
        ]
    assert trained == [("learner", f"{GROUPS[3]}-s1", RUN)]
    rejected = "SELECT group_id FROM groups WHERE reason = 'mine'"
    assert await samples_where(learner, rejected, with_parent=True, cache=tmp_path / "tables") == [
        f"{GROUPS[0]}-s0",
        f"{GROUPS[0]}-s1",
    ]


async def test_a_step_that_its_parent_had_sealed_ahead_is_the_branch_s_own(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    ahead = max(number for number, event in enumerate(events(), 1) if isinstance(event, BatchSealed))
    events_ = [
        *branch(where, version=1, position=ahead),
        made.sealed(1, groups=(GROUPS[3],), samples=(f"{GROUPS[3]}-s1",), rewards=(0.5,), raw_rewards=(9.0,)),
    ]
    child = await opened(events_, run="child")
    async with tables_of(child, with_parent=True, cache=tmp_path / "tables") as tables:
        assert (await tables.sql("SELECT run, step FROM steps ORDER BY step")).rows() == [(RUN, 0), ("child", 1)]
        trained = (await tables.sql("SELECT DISTINCT run, step FROM trained ORDER BY step")).rows()
    assert trained == [(RUN, 0), ("child", 1)]


async def test_a_learner_answers_with_the_rollouts_that_it_is_trained_on(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    mine = made.sealed(groups=(GROUPS[3],), samples=(f"{GROUPS[3]}-s1",), rewards=(0.5,), raw_rewards=(9.0,))
    learner = await opened([*branch(where, version=0, position=3, follows=True), mine], run="learner")
    async with tables_of(learner, cache=tmp_path / "tables") as tables:
        trained = await tables.sql("SELECT run, sample, step, text FROM samples WHERE step IS NOT NULL")
        assert trained.rows() == [(RUN, f"{GROUPS[3]}-s1", 0, "is 42")]
        assert (await tables.sql("SELECT group_id FROM groups WHERE step = 0")).rows() == [(GROUPS[3],)]
        assert (await tables.sql("SELECT run, step FROM steps")).rows() == [("learner", 0)]
        assert (await tables.sql("SELECT DISTINCT run FROM events")).rows() == [("learner",)]
        assert (await tables.sql("SELECT run FROM versions UNION SELECT run FROM evals")).rows() == [("learner",)]
    shutil.rmtree(where)
    async with tables_of(learner, cache=tmp_path / "others") as tables:
        assert (await tables.sql("SELECT run, step FROM steps")).rows() == [("learner", 0)]
        with pytest.raises(RunNotFound, match=f"branched off from version . of run {RUN}, which was at {where}"):
            await tables.sql("SELECT count(*) FROM samples")


async def test_a_run_that_goes_on_after_an_end_has_not_finished(tmp_path: Path) -> None:
    stopped = made.finished(FinishReason.INTERRUPTED)
    events_ = [made.started(), stopped, made.resumed()]
    ended = made.finished(steps=2, events=3)
    for events_of, reason in ((events_[:2], "interrupted"), (events_, None), ([*events_, ended], "all_steps")):
        async with tables_of(await opened(events_of), cache=tmp_path / "tables") as tables:
            rows = (await tables.sql("SELECT finish_reason, finished IS NULL, resumptions FROM runs")).rows()
        assert rows == [(reason, reason is None, len(events_of) // 3)]


async def test_a_parent_that_has_gone_is_named(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    child = await opened(branch(where, version=1, position=5), run="child")
    shutil.rmtree(where)
    with pytest.raises(RunNotFound, match=f"branched off from version . of run {RUN}, which was at {where}"):
        async with tables_of(child, with_parent=True, cache=tmp_path / "tables"):
            pass


async def test_the_past_of_a_branch_of_a_branch_goes_back_to_its_first_run(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    child = made.recorded(*branch(where, version=1, position=9), *step_events(1, "own"), run="child")
    events_ = branch(made.archived(tmp_path, child), version=2, position=9)
    (started, published) = events_
    assert isinstance(started, RunStarted)
    started = replace(started, branched=replace(started.branched, run="child", weights_digest="w2"))
    for follows, runs in ((False, ["child", "grandchild", RUN]), (True, ["child", "grandchild", RUN])):
        begun = replace(started, branched=replace(started.branched, follows=follows))
        run = await opened([begun, replace(published, digest="w2")], "grandchild")
        async with tables_of(run, with_parent=True, cache=tmp_path / "tables") as tables:
            assert (await tables.sql("SELECT run FROM runs ORDER BY run")).rows() == [(name,) for name in runs]
        async with tables_of(run, cache=tmp_path / "tables") as tables:
            prompts = {name for (name,) in (await tables.sql("SELECT DISTINCT run FROM prompts")).rows()}
        assert prompts == ({"child"} if follows else set())
