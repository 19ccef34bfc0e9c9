"""The MIS example: a user's correction and its settings out of a YAML file, in the trainer's objective."""

from __future__ import annotations

import math

import pytest
import torch

from slime_events.algorithms.correction import OwnTerms
from slime_events.algorithms.objective import policy_objective
from slime_events.algorithms.train_arguments import parse_train
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.trainer_points import TIS, TrainerFunctions, points_in_use, rank_args
from tests.harness.users.examples.stage import EXAMPLES, LEAST

FLAGS = "--rm-type math --custom-tis-function-path mis.compute_mis_weights_with_cp --custom-config-path mis.yaml"


def test_it_weights_by_sequences_and_leaves_out_what_is_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES / "mis")
    settings = parse_train([*LEAST.split(), *FLAGS.split()]).settings
    assert settings.algorithm.use_tis
    for point, path in points_in_use(settings):
        point.check(path)
    args = ArgsView(rank_args(settings))
    functions = TrainerFunctions(args, settings.algorithm)
    train = [torch.log(torch.tensor([0.5, 0.5, 1e-6])), torch.log(torch.tensor([0.5, 0.25]))]
    engine = [torch.log(torch.tensor([0.25, 0.5, 0.5])), torch.log(torch.tensor([0.25, 0.25]))]
    new = [part.clone().requires_grad_() for part in train]
    loss, metrics = policy_objective(
        log_probs=new,
        old_log_probs=train,
        rollout_log_probs=engine,
        ref_log_probs=None,
        advantages=[torch.ones(3), torch.ones(2)],
        loss_masks=[torch.tensor([1, 1, 1]), torch.tensor([1, 1])],
        rollout_denoms=None,
        entropy=None,
        settings=settings.algorithm,
        own=OwnTerms(args=args, total_lengths=[5, 4], tis=functions.at(TIS)),
    )
    first = min(2.0, max(0.5, math.exp((math.log(2) + math.log(2e-6)) / 3)))
    second = math.sqrt(2)
    assert loss.item() == pytest.approx(-first * 2 / 3 - second, rel=1e-5), "the third token is left out"
    assert metrics["mis_weight"].item() == pytest.approx(first + second, rel=1e-5)
    assert metrics["mis_kept"].item() == pytest.approx(2 / 3 + 1)
