"""*Now*: the state of a run, who does what and who waits for what; and the alarms of the detectors."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.runs import RunFailed
from schemas.steps import StepCommitted
from serve_apps.http.console.activities import DECIDED, OPEN, PROMPTS, SEALED, STEPS, UNGRADED
from slime_events.analysis.query import tables_of
from slime_events.analysis.query.detectors import ALARMS
from slime_events.core.config.data import DataSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import ENGINE, RUN, events
from tests.console.served import URL, Memory, client_of, get
from tests.lineage import opened

pytestmark = pytest.mark.asyncio(loop_scope="package")


def _until(kind: type[Event], number: int = 1) -> list[Event]:
    """The events of the small run up to the n-th of a type."""
    log = events()
    places = [place for place, event in enumerate(log, 1) if isinstance(event, kind)]
    return log[: places[number - 1]]


async def _now(log: Sequence[Event], *, on: bool = True) -> tuple[dict[str, Any], OpenedRun]:
    run = await opened.opened(log, "r")
    async with client_of(Memory({"r": run}, on=on)) as client:
        return await get(client, "/api/runs/r/now"), run


def _who(page: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {activity["who"]: activity for activity in page["activities"]}


async def _rows(run: OpenedRun, sql: str) -> list[tuple[Any, ...]]:
    async with tables_of(run) as tables:
        return (await tables.sql(sql)).rows()


async def test_a_finished_run_has_nothing_to_do(client: httpx.AsyncClient) -> None:
    page = await get(client, f"{URL}/now")
    assert (page["status"], page["mend"], page["waits_for"], page["activities"]) == ("finished", None, None, [])
    assert (page["steps"], page["version"], page["open_groups"], page["workers"]) == (2, 2, 0, {})
    assert page["now"] == page["at"]  # time does not pass for it
    assert page["decisions"][0]["type"] == "run.finished"
    command = shlex.split(page["source"]["command"])
    assert command == ["slime-events", "show", RUN, "--at", str(page["position"])]


async def test_a_requested_rollout_without_a_token() -> None:
    log = [*_until(StepCommitted), made.published(1, parent=0), made.activated(1, engine=ENGINE)]
    log += [made.submitted("new"), made.requested("new-s0")]
    page, _ = await _now(log)
    who = _who(page)
    assert page["status"] == "running"
    assert "1 samples" in page["waits_for"]
    assert who["rollouts"]["waits"] is True
    assert who["rollouts"]["since"] == page["at"]
    assert (who[ENGINE]["waits"], who[ENGINE]["since"]) == (False, None)  # it may generate it: the log does not say
    assert page["now"] > page["at"]


async def test_an_engine_that_has_begun_and_a_grader_with_work() -> None:
    log = [*_until(StepCommitted), made.submitted("new"), made.requested("new-s0"), made.requested("new-s1")]
    log += [made.progressed("new-s0", [10], log_probs=[-0.5], engine=ENGINE)]
    log += [made.completed("new-s1", [1], [-0.5], length=1, engine=ENGINE)]
    page, run = await _now(log)
    who = _who(page)
    assert who[ENGINE]["waits"] is False
    assert who[ENGINE]["since"] is not None
    graders, conductor = who["graders"], who["conductor"]
    assert graders["waits"] is False
    completed = await _rows(run, f"SELECT epoch_ns(min(completed)) FROM ({UNGRADED})")
    assert graders["since"] == pytest.approx(completed[0][0], abs=1000)  # SQL has microseconds
    settings = run.settings
    assert shlex.split(graders["mend"]) == [
        *("slime-events", "resume", "r", "--rm-workers", str(2 * settings.reward.rm_workers)),
    ]
    assert conductor["deadline"] is None  # its prompts come from producers, which have no deadline
    assert who["trainer"]["waits"] is True
    assert "rollouts" not in who


@pytest.mark.parametrize("prompts", ["rows.jsonl", None])
async def test_a_run_that_waits_for_others_has_no_deadline(prompts: str | None) -> None:
    settings = TrainSettings(data=DataSettings(prompt_data=prompts), rollout=RolloutSettings(num_rollout=2))
    log: list[Event] = [made.started(settings), made.published(0), made.activated(0, engine=ENGINE)]
    page, _ = await _now(log)
    conductor = _who(page)["conductor"]
    limit_s = settings.rollout.rollout_deadline
    if prompts is None:
        assert conductor["deadline"] is None
        assert shlex.split(conductor["mend"])[:3] == ["slime-events", "produce", "r"]
    else:
        assert conductor["deadline"] == page["at"] + limit_s * 10**9
        assert shlex.split(conductor["mend"]) == [
            *("slime-events", "resume", "r", "--rollout-deadline", f"{2 * limit_s:g}"),
        ]


async def test_a_trainer_with_a_batch() -> None:
    page, _ = await _now(_until(BatchSealed, 2))
    trainer = _who(page)["trainer"]
    assert (trainer["waits"], trainer["since"]) == (False, page["at"])
    assert "step 1" in page["waits_for"]


async def test_every_evidence_is_a_query_that_has_an_answer() -> None:
    lists = [_until(BatchSealed, 2), _until(RolloutCompleted, 3), _until(RewardAssigned), events()[:4]]
    lists.append([*lists[0], made.submitted("q"), made.requested("q-s0")])
    queries = dict.fromkeys((PROMPTS, SEALED, STEPS, DECIDED, UNGRADED, OPEN), await opened.small())
    for log in lists:
        page, run = await _now(log)
        assert page["activities"]
        queries |= {activity["evidence"]: run for activity in page["activities"]} | {page["source"]["sql"]: run}
    assert len(queries) > 5
    for sql, run in queries.items():
        async with tables_of(run) as tables:
            await tables.sql(sql)


async def test_a_killed_run_has_the_command_that_continues_it() -> None:
    page, _ = await _now(_until(BatchSealed), on=False)
    assert page["status"] == "unended"  # an archive does not show whether the run is on
    failed, _ = await _now([*_until(BatchSealed), RunFailed(role="trainer", reason="it's <b>bad</b> \u202e")], on=False)
    assert failed["status"] == "failed"
    assert shlex.split(failed["mend"]) == ["slime-events", "resume", "r"]
    assert "<b>bad</b> \u202e" in failed["failure"]
    assert failed["activities"] == []


async def test_alarms_are_the_findings_of_their_detectors(client: httpx.AsyncClient) -> None:
    answer = await get(client, f"{URL}/alarms")
    assert [detector["name"] for detector in answer["detectors"]] == [detector.name for detector in ALARMS]
    assert all(detector["findings"] == [] for detector in answer["detectors"])
    assert answer["graded"] == 10
    assert shlex.split(answer["command"]) == ["slime-events", "inspect", RUN, "--alarms"]


async def test_a_run_without_any_reward_raises_an_alarm_whose_query_gives_the_same() -> None:
    log: list[Event] = [made.started()]
    for step in range(6):
        groups = [f"g{step}-{number}" for number in range(12)]
        samples = [f"{group}-s{index}" for group in groups for index in range(2)]
        for group in groups:
            log.append(made.submitted(group))
        for sample in samples:
            log += [made.requested(sample), made.completed(sample, [1], [-0.5], length=1, text=sample)]
            log.append(made.assigned(sample, value=0.0))
        for group in groups:
            log.append(made.accepted(group, samples=(f"{group}-s0", f"{group}-s1"), rewards=(0.0, 0.0)))
        zeros = (0.0,) * len(samples)
        log.append(made.sealed(step, groups=tuple(groups), samples=tuple(samples), rewards=zeros, raw_rewards=zeros))
        log.append(made.committed(step))
    run = await opened.opened(log, "r")
    async with client_of(Memory({"r": run}, on=True)) as client:
        answer = await get(client, "/api/runs/r/alarms")
    raised = {detector["name"]: detector for detector in answer["detectors"] if detector["findings"]}
    assert "equal_rewards" in raised
    async with tables_of(run) as tables:
        rows = (await tables.sql(raised["equal_rewards"]["sql"])).arrow().to_pylist()
    assert raised["equal_rewards"]["findings"] == rows


@pytest.mark.parametrize("name", ["now", "alarms"])
async def test_unknown_runs_are_refused(client: httpx.AsyncClient, name: str) -> None:
    for run in ("none", "..%2f..%2fetc", "%E2%80%AE", "a'--"):
        assert (await client.get(f"/api/runs/{run}/{name}")).status_code == 404


async def test_a_log_without_events_is_refused() -> None:
    run = made.opened(MemoryLog("r"), (await opened.small()).settings)
    async with client_of(Memory({"r": run})) as client:
        assert (await client.get("/api/runs/r/now")).status_code == 404


async def test_each_alarm_and_each_evidence_can_be_opened(client: httpx.AsyncClient) -> None:
    alarms = await get(client, f"{URL}/alarms")
    assert [checked["name"] for checked in alarms["detectors"]] == [detector.name for detector in ALARMS]
    for checked in alarms["detectors"]:
        page = await get(client, f"{URL}/query", sql=checked["sql"])
        rows = [dict(zip(page["names"], row, strict=True)) for row in zip(*page["columns"], strict=True)]
        assert len(rows) == len(checked["findings"])
        assert page["source"]["sql"] == checked["sql"]
    for evidence in (OPEN, UNGRADED, PROMPTS, SEALED, STEPS, DECIDED):
        assert (await get(client, f"{URL}/query", sql=evidence))["is_whole"]
