"""The user's own normalisation of a batch's rewards: what it sees, what it gives, and that a run with it is asked about
like any other."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import InvalidValue, PlugPointError
from schemas.rewards import RewardAssigned
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.learner.settings import learner_settings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import digest_of, load_function
from slime_events.plugins.post_process import PostProcess
from tests.replay.replayed import replayed
from tests.rescore.recorded import GROUPS, SAMPLES, opened, record, settings
from tests.simulation.simulation import make_plan

OWN = """
import itertools

SEEN, COUNTER = [], itertools.count()

def centred(args, samples):
    SEEN.append(samples)
    raw = [sample.get_reward_value(args) for sample in samples]
    mean = sum(raw) / len(raw)
    return raw, [reward - mean + 100 * len(sample.response) for reward, sample in zip(raw, samples)]

def other_each_time(args, samples):
    return [1.0] * len(samples), [float(next(COUNTER))] * len(samples)

def too_few(args, samples):
    return [1.0], [1.0]

def one_list(args, samples):
    return [sample.reward for sample in samples]

def not_finite(args, samples):
    return [1.0] * len(samples), [float("nan")] * len(samples)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "post_process_of_a_user.py"
    file.write_text(OWN)
    return str(file)


def settings_with(path: str) -> TrainSettings:
    run = settings()
    reward = msgspec.structs.replace(run.reward, custom_reward_post_process_path=path)
    return msgspec.structs.replace(run, reward=reward)


def seen_by(own: str) -> list[Any]:
    seen: list[Any] = load_function(f"{own}:centred").__globals__["SEEN"]
    return seen


async def test_a_batch_has_what_the_function_gave_and_its_digest(own: str, tmp_path: Path) -> None:
    run = settings_with(f"{own}:centred")
    sim = await record(tmp_path, run)
    sealed = sim.events(BatchSealed)
    graded = {event.sample: event.value for event in sim.events(RewardAssigned)}
    assert len(sealed) == 5
    for batch, samples in zip(sealed, seen_by(own), strict=True):
        assert len(samples) == GROUPS * SAMPLES == len(batch.rewards)
        assert [sample.reward for sample in samples] == [graded[name] for name in batch.samples]
        mean = sum(batch.raw_rewards) / len(batch.raw_rewards)
        texts = [100 * len(sample.response) for sample in samples]
        assert min(texts) > 0, "the texts of accepted groups are there until their batch is sealed"
        assert list(batch.rewards) == [raw - mean + text for raw, text in zip(batch.raw_rewards, texts, strict=True)]
        assert batch.post_process.endswith(":centred")
        assert batch.post_process_digest == hashlib.sha256(Path(own).read_bytes() + b"\0centred").hexdigest()
        assert batch.post_process_digest == digest_of(load_function(f"{own}:centred"))


async def test_replay_audit_and_rescore_hold_with_it(own: str, tmp_path: Path) -> None:
    run = settings_with(f"{own}:centred")
    sim = await record(tmp_path, run)
    by = Policy.of(run)._replace(plan=make_plan())
    report = replayed(sim.log.records, by)
    assert report.is_equal, report.differences[0]
    auditor = Audit("sim", rules=Rules(make_plan(), run.algorithm), fetch=unpack, files=False)
    for stored in sim.log.records:
        auditor.apply(stored)
    assert [finding for check in auditor.finish().checks for finding in check.findings] == []
    rescored = await rescore(opened(sim, run), make_change(run), io.BytesIO())
    assert rescored.is_same
    assert rescored.mismatched == 0
    assert [step.advantages for step in rescored.steps] == [0] * 5


async def test_what_is_not_deterministic_is_recorded_and_a_replay_says_so(own: str, tmp_path: Path) -> None:
    run = settings_with(f"{own}:other_each_time")
    sim = await record(tmp_path, run)
    assert {batch.raw_rewards for batch in sim.events(BatchSealed)} == {(1.0,) * (GROUPS * SAMPLES)}
    report = replayed(sim.log.records, Policy.of(run)._replace(plan=make_plan()))
    assert {(type(difference.recorded), difference.fields) for difference in report.differences} == {
        (BatchSealed, ("rewards", "digest"))
    }


@pytest.mark.parametrize("name", ["too_few", "one_list", "not_finite"])
async def test_what_it_gives_is_checked(name: str, own: str, tmp_path: Path) -> None:
    with pytest.raises(PlugPointError, match=name):
        await record(tmp_path, settings_with(f"{own}:{name}"))


def test_a_learner_refuses_it(own: str) -> None:
    run = settings_with(f"{own}:centred")
    with pytest.raises(InvalidValue, match="centred"):
        learner_settings(run, run, steps=3)


def test_there_is_none_without_a_path() -> None:
    assert PostProcess.of(settings().reward, ArgsView({})) is None
