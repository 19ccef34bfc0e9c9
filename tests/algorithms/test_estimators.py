"""A new estimator is one file and one line in the registry."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.algorithms.estimators import ESTIMATORS, estimator_of
from slime_events.algorithms.estimators.estimator import Estimator
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.algorithms.train_arguments import parse_train
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.model.advantages import sample_advantages
from tests.megatron.conftest import tiny, trainer  # noqa: F401  # fixtures
from tests.megatron.tiny import make_batch
from tests.rescore.recorded import opened, record, settings

LOO = """
from dataclasses import dataclass
from typing import ClassVar

from slime_events.algorithms.estimators.estimator import Estimator


@dataclass(frozen=True, slots=True)
class LeaveOneOut(Estimator):
    "Each reward against the mean of the others of its group."

    needs_whitening: ClassVar[bool] = True

    def reward_normalisation(self, rewards, settings):
        return [reward - (sum(rewards) - reward) / (len(rewards) - 1) for reward in rewards]

    def discount(self, settings):
        return 0.5

    def loss(self, log_ratio, log_probs, advantages, segments, settings):
        return Estimator.loss(self, log_ratio, log_probs, 2 * advantages, segments, settings)
"""
LEAST = ["--hf-checkpoint", "model", "--rm-type", "math", "--num-rollout", "2", "--rollout-batch-size", "16"]
MINE = ["--advantage-estimator", "leave_one_out", "--normalize-advantages"]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_declarations_are_true(name: str) -> None:
    """The rules at the fields of settings read them."""
    estimator, pair = ESTIMATORS[name], [0.0, 1.0]
    own = AlgorithmSettings(advantage_estimator=name, gamma=0.5)
    scaled, centred = (
        estimator.reward_normalisation(pair, replace(own, grpo_std_normalization=scale)) for scale in (True, False)
    )
    assert estimator.normalizes_rewards is (centred != pair)
    assert estimator.scales_rewards is (scaled != centred)
    assert estimator.discounts is (estimator.discount(own) != 1.0 or estimator.needs_values)


@pytest.fixture
def leave_one_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leave_one_out.py").write_text(LOO)
    monkeypatch.syspath_prepend(tmp_path)
    import leave_one_out  # type: ignore[import-not-found]

    monkeypatch.setitem(ESTIMATORS, "leave_one_out", leave_one_out.LeaveOneOut())
    monkeypatch.delitem(sys.modules, "leave_one_out")


@pytest.mark.usefixtures("leave_one_out")
def test_settings_take_it_and_ask_it() -> None:
    assert parse_train([*LEAST, *MINE]).settings.algorithm.advantage_estimator == "leave_one_out"
    with pytest.raises(ImpossibleCombination, match="leave_one_out needs normalize_advantages"):
        parse_train([*LEAST, *MINE[:2]])
    toml = '[algorithm]\nadvantage_estimator = "leave_one_out"\nnormalize_advantages = true\n'
    parse_train([*LEAST, "--config", "own.toml"], read=lambda _: toml)


@pytest.mark.usefixtures("leave_one_out")
def test_rewards_are_normalised_by_it_and_lineage_discounts_as_it_says() -> None:
    own = AlgorithmSettings(advantage_estimator="leave_one_out")
    assert normalize_rewards([1.0, 0.0, 0.0], [3], own) == [1.0, -0.5, -0.5]
    shown = sample_advantages([1.0], [np.array([1, 0, 1], np.int8)], own)
    assert (shown.first.tolist(), shown.last.tolist()) == ([0.25], [1.0])


@pytest.mark.usefixtures("leave_one_out")
def test_a_rank_trains_with_its_loss(tiny: Path, trainer: Callable[..., Any]) -> None:  # noqa: F811
    losses = {}
    for name in ("grpo", "leave_one_out"):
        with trainer(tiny, {"advantage_estimator": name}, lr=0.0) as rank:
            losses[name] = rank.train(make_batch()).metrics["pg_loss"]
    assert losses["leave_one_out"] == pytest.approx(2 * losses["grpo"], rel=1e-6)


@pytest.mark.usefixtures("leave_one_out")
async def test_a_run_is_rescored_by_it(tmp_path: Path) -> None:
    run = settings()
    report = await rescore(opened(await record(tmp_path, run), run), make_change(run, MINE), None)
    assert "advantage_estimator grpo -> leave_one_out" in report.changed
    assert any(step.advantages for step in report.steps)


def test_a_name_that_is_not_registered_is_an_error_with_those_that_are() -> None:
    everyone = "grpo | gspo | cispo | reinforce_plus_plus | reinforce_plus_plus_baseline | ppo"
    for words in (["--advantage-estimator", "mine"], ["--config", "own.toml"]):
        with pytest.raises(InvalidValue) as refused:
            parse_train([*LEAST, *words], read=lambda _: '[algorithm]\nadvantage_estimator = "mine"\n')
        assert everyone in str(refused.value)
    with pytest.raises(InvalidValue):
        estimator_of(AlgorithmSettings(advantage_estimator="mine"))


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_each_says_its_paper_and_its_formula(estimator: Estimator) -> None:
    module, kind = sys.modules[type(estimator).__module__], type(estimator)
    assert re.search(r"20\d\d, arXiv \d{4}\.\d{5}", module.__doc__ or "")
    assert re.search(r"(A|A_t|loss|ratio) = ", kind.__doc__ or "")
