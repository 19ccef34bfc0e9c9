"""What the audit finds in a learner's log that somebody has worked on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serve_apps.engine.scripted_engine import Script
from slime_events.audit.audit import Audit
from slime_events.audit.followed import facts_of
from slime_events.audit.rules import Rules
from slime_events.config.algorithm import AlgorithmSettings
from tests.audit.doctored import Doctored
from tests.learner.learning import Learning
from tests.simulation.simulation import Simulation, make_plan


def twice(log: Doctored) -> None:
    first, second = log.find("batch.sealed"), log.find("batch.sealed", nth=1)
    second.event["samples"][0], second.event["groups"][0] = first.event["samples"][0], first.event["groups"][0]


def unknown(log: Doctored) -> None:
    batch = log.find("batch.sealed").event
    batch["samples"] = [sample.replace("-000000-", "-999999-") for sample in batch["samples"]]
    batch["groups"] = [group.replace("-000000", "-999999") for group in batch["groups"]]


def other_rewards(log: Doctored) -> None:
    log.find("batch.sealed").event["rewards"][0] += 0.5


def out_of_order(log: Doctored) -> None:
    log.find("batch.sealed").event["groups"].reverse()


def not_next(log: Doctored) -> None:
    log.find("batch.sealed").event["step"] = 1


def tokens(log: Doctored) -> None:
    log.find("step.committed").event["tokens"] += 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (twice, "is in the batch of step 0, so it trains twice"),
        (unknown, "the log of sim holds no completed rollout of sample train-0-999999-s0"),
        (other_rewards, "its rewards are not its raw rewards normalised over what is left of their groups"),
        (other_rewards, "its digest is not that of its samples' contents in the log of sim and its rewards"),
        (out_of_order, "its samples are not of its groups in order"),
        (not_next, "it is step 1, and the batch of step 0 is next"),
        (tokens, "it counts 193 tokens, and its batch has 192"),
    ],
)
async def test_a_change_is_found(tmp_path: Path, change: Callable[[Doctored], None], found: str) -> None:
    async with Simulation(tmp_path, make_plan(steps=2)) as sim:
        sim.start_engine(Script(chunk=24))
        await sim.finish()
    learning = Learning(sim.log, tmp_path / "second", steps=2)
    await learning.begin()
    await learning.run()
    log = Doctored.of("second", learning.log.records)
    change(log)
    facts = await facts_of("sim", sim.log.read())
    report = await log.audit(Audit("second", rules=Rules(None, AlgorithmSettings()), files=False, parent=facts))
    assert any(found in str(finding) for finding in report.findings), [str(finding) for finding in report.findings]
