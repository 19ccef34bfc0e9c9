"""Another credit rule over the recorded sessions of agents; the run's own changes nothing."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import InvalidValue
from schemas.rollouts import RolloutCompleted
from schemas.runs import RunFinished
from schemas.sessions import Credit
from slime_events.algorithms.credit import CreditRule
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.report import Report
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.config.agents import AgentSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.training.batch_columns import BatchCredit, BatchMasks
from slime_events.loop.learner.overrides import Overrides, read_overrides, write_overrides
from tests import made
from tests.agents.stage import ASKED, Stage, ask, seal
from tests.learner.learning import Learning
from tests.rescore.recorded import settings
from tests.scripted_engine import Script

RULES = [CreditRule(credit, 0.5 if credit is Credit.DISCOUNTED else 1.0) for credit in Credit]


def _settings(rule: CreditRule) -> TrainSettings:
    agents = AgentSettings(agent_credit=rule.credit.value, agent_turn_discount=rule.discount)
    return msgspec.structs.replace(settings(agents=True), agents=agents)


def _flags(rule: CreditRule) -> list[str]:
    return ["--agent-credit", rule.credit.value, "--agent-turn-discount", str(rule.discount)]


async def _recorded(folder: Path, rule: CreditRule, *, graded_by_run: bool = False) -> Stage:
    """Two steps of two rollouts: of two agents one asks twice after one answer, and continues one of them."""
    folder.mkdir(exist_ok=True)
    stage = Stage(folder)
    async with stage.simulation, stage.gateway(credit=rule) as client:
        stage.simulation.start_engine(Script(chunk=4))
        number = 0
        while not stage.simulation.events(RunFinished):
            session = await stage.open(client, wait_s=1)
            if session["status"] != 201:
                continue
            reply = await ask(client, session, ASKED)
            if number % 2 == 0:
                chat = [*ASKED, reply, {"role": "user", "content": "one way"}]
                chat += [await ask(client, session, chat), {"role": "user", "content": "and then?"}]
                await ask(client, session, chat)
                await ask(client, session, [*ASKED, reply, {"role": "user", "content": "another way"}])
            await seal(client, session, **({"exit_code": 0} if graded_by_run else {"reward": float(number % 2)}))
            number += 1
    return stage


async def _rescored(stage: Stage, rule: CreditRule, other: CreditRule, out: io.BytesIO | None = None) -> Report:
    run = _settings(rule)
    opened = made.opened(stage.simulation.log, run, "sim")
    return await rescore(opened, make_change(run, _flags(other)), out)


def _trained(stage: Stage) -> int:
    """Tokens that the batches train on."""
    samples = {name for batch in stage.simulation.events(BatchSealed) for name in batch.samples}
    done = [event for event in stage.simulation.events(RolloutCompleted) if event.sample in samples]
    return sum(event.length if event.loss_mask is None else int(unpack(event.loss_mask).sum()) for event in done)


async def test_the_rule_of_a_run_changes_nothing_and_another_gives_what_a_run_under_it_trains(tmp_path: Path) -> None:
    runs = {rule: await _recorded(tmp_path / rule.credit.value, rule) for rule in RULES}
    for rule, stage in runs.items():
        for other, alike in runs.items():
            out = io.BytesIO()
            report = await _rescored(stage, rule, other, out)
            assert (report.recredited, report.regraded, report.mismatched) == (True, False, 0)
            assert (report.is_same, out.getvalue() == b"") == ((True, True) if rule == other else (False, False))
            assert report.credit.tokens_before == _trained(stage)
            assert report.credit.tokens_after == _trained(alike)
            samples = sum(len(batch.samples) for batch in alike.simulation.events(BatchSealed))
            assert sum(step.samples_after for step in report.steps) == samples


async def test_what_differs_is_written_once_as_a_rule(tmp_path: Path) -> None:
    stage, out = await _recorded(tmp_path, RULES[0]), io.BytesIO()
    report = await _rescored(stage, RULES[0], CreditRule(Credit.DISCOUNTED, 0.5), out)
    assert [msgspec.json.decode(line) for line in out.getvalue().splitlines()] == [
        {"credit": "discounted", "discount": 0.5}
    ]
    assert all(step.tokens and step.advantages for step in report.steps)
    assert report.credit.tokens_before == report.credit.tokens_after


async def test_a_path_that_nobody_graded_cannot_be_credited(tmp_path: Path) -> None:
    leaf = CreditRule(Credit.LEAF)
    stage = await _recorded(tmp_path, leaf, graded_by_run=True)
    assert (await _rescored(stage, leaf, leaf)).is_same
    with pytest.raises(InvalidValue):
        await _rescored(stage, leaf, CreditRule(Credit.ALL))


def test_a_run_without_agents_has_no_credit_rule() -> None:
    with pytest.raises(InvalidValue):
        make_change(settings(), _flags(CreditRule(Credit.LAST)))


@pytest.mark.parametrize("other", RULES[1:], ids=str)
async def test_a_learner_trains_what_a_run_under_the_rule_trains(tmp_path: Path, other: CreditRule) -> None:
    """Train from the changes file that rescoring writes."""
    stage, out = await _recorded(tmp_path / "own", RULES[0]), io.BytesIO()
    alike = await _recorded(tmp_path / "alike", other)
    await _rescored(stage, RULES[0], other, out)
    changes = read_overrides(out.getvalue(), "changes")
    assert read_overrides(write_overrides(changes), "again") == changes
    learning = Learning(stage.simulation.log, tmp_path, changes=changes, steps=2)
    await learning.begin()
    await learning.run()
    batches = learning.events(BatchSealed)
    assert [batch.samples for batch in batches] == [event.samples for event in alike.simulation.events(BatchSealed)]
    for batch in batches:
        masks, credit = BatchMasks(batch, unpack), BatchCredit(batch, unpack)
        for done in alike.simulation.events(RolloutCompleted):
            if done.sample in batch.samples:
                own = np.ones(done.length, np.int8) if done.loss_mask is None else unpack(done.loss_mask)
                assert np.array_equal(masks.of(done.sample, None, done.length), own)
                ones = np.ones(done.length, np.float32)
                expected = ones if done.credit is None else unpack(done.credit)
                weights = credit.of(done.sample, None, unpack)
                assert np.array_equal(ones if weights is None else weights, expected)


async def test_a_learner_cannot_train_on_paths_that_were_no_samples(tmp_path: Path) -> None:
    stage = await _recorded(tmp_path / "own", CreditRule(Credit.LEAF))
    learning = Learning(stage.simulation.log, tmp_path, changes=Overrides(credit=RULES[0]), steps=2)
    await learning.begin()
    with pytest.raises(InvalidValue):
        await learning.run()
