"""MIS, IcePop and the figures of mismatch, against plain Python in float64, token by token."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.correction import figures_of_mismatch
from slime_events.algorithms.mis import MisRule, compute_mis_weights_with_cp, icepop_function, vanilla_tis_function
from slime_events.algorithms.objective import policy_objective
from slime_events.algorithms.segments import Segments
from slime_events.core.config.algorithm import AlgorithmSettings


class Drawn(NamedTuple):
    """Samples of a few tokens: log-probs of both, exact in float32, and masks."""

    train: list[list[float]]
    rollout: list[list[float]]
    masks: list[list[int]]

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return {
            "train_log_probs": [torch.tensor(part) for part in self.train],
            "rollout_log_probs": [torch.tensor(part) for part in self.rollout],
            "loss_masks": [torch.tensor(part, dtype=torch.int32) for part in self.masks],
        }


LOG_PROB = st.integers(-1024, -1).map(lambda value: value / 128)


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    rows = [[draw(st.lists(kind, min_size=n, max_size=n)) for n in lengths] for kind in (LOG_PROB, LOG_PROB)]
    return Drawn(*rows, [draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) for n in lengths])


def ratios(train: list[float], rollout: list[float], mask: list[int], level: str) -> list[float]:
    logs = [new - old for new, old in zip(train, rollout, strict=True)]
    if level != "token":
        total = math.fsum(log for log, trained in zip(logs, mask, strict=True) if trained)
        logs = [total / (1 if level == "sequence" else max(1, sum(mask)))] * len(logs)
    return [math.exp(min(20.0, max(-20.0, log))) for log in logs]


def reference(drawn: Drawn, args: Any) -> tuple[list[float], list[float]]:
    """(weights, mask) of all tokens, end to end, as the paper and slime's example say it."""
    weights, masks = [], []
    low = 1 / args.tis_upper_bound if args.tis_lower_bound is None else args.tis_lower_bound
    high = args.tis_upper_bound
    for train, rollout, mask in zip(*drawn, strict=True):
        rejecting = ratios(train, rollout, mask, args.rs_level)
        rs_low = low if args.rs_lower_bound is None else args.rs_lower_bound
        rs_high = high if args.rs_upper_bound is None else args.rs_upper_bound
        token = [math.exp(new - old) for new, old in zip(train, rollout, strict=True)]
        veto = args.rs_veto_threshold
        vetoed = veto is not None and any(ratio < veto and trained for ratio, trained in zip(token, mask, strict=True))
        for place, ratio in enumerate(ratios(train, rollout, mask, args.tis_level)):
            keep = float(mask[place])
            if args.tis_mode == "mask" and not low <= ratio <= high:
                keep = 0.0
            if args.use_rs and (vetoed or not rs_low <= rejecting[place] <= rs_high):
                keep = 0.0
            weight = {"mask": ratio, "truncate": min(ratio, high), "clip": min(max(ratio, low), high)}[args.tis_mode]
            weights.append(weight * mask[place])
            masks.append(keep)
    if args.tis_batch_normalize:
        mean = math.fsum(weights) / max(1, sum(map(sum, drawn.masks)))
        if args.tis_level != "token":  # every sample counts once, an untrained one with 0
            rest, means = iter(weights), []
            for mask in drawn.masks:
                means.append(math.fsum(itertools.islice(rest, len(mask))) / max(1, sum(mask)))
            mean = math.fsum(means) / len(means)
        weights = [weight / mean for weight in weights] if mean > 0 else weights
    return weights, masks


@settings(max_examples=150, deadline=None)
@given(
    drawn(),
    st.fixed_dictionaries(
        {
            "tis_level": st.sampled_from(["token", "sequence", "geometric"]),
            "tis_mode": st.sampled_from(["truncate", "clip", "mask"]),
            "tis_lower_bound": st.sampled_from([None, 0.3]),
            "tis_upper_bound": st.sampled_from([2.03, 5.07]),
            "tis_batch_normalize": st.booleans(),
            "use_rs": st.booleans(),
            "rs_level": st.sampled_from(["token", "sequence", "geometric"]),
            "rs_lower_bound": st.sampled_from([None, 0.31]),
            "rs_upper_bound": st.sampled_from([None, 3.03]),
            "rs_veto_threshold": st.sampled_from([None, 0.011]),
        }
    ),
)
def test_mis_equals_its_rules_in_float64(drawn: Drawn, given_args: dict[str, Any]) -> None:
    args = SimpleNamespace(**given_args)
    tokens = sum(map(len, drawn.masks))
    loss, masks, figures = compute_mis_weights_with_cp(args, pg_loss=torch.ones(tokens), **drawn.tensors())
    weights, kept = reference(drawn, args)
    # A float32 exponential at a ratio of up to e^20 is a relative matter.
    assert loss.tolist() == pytest.approx(weights, rel=1e-6, abs=1e-6)
    assert torch.cat(masks).tolist() == kept
    assert all(value.shape == (tokens,) for value in figures.values())


@settings(max_examples=80, deadline=None)
@given(drawn(), st.sampled_from([0.0, 0.51]), st.sampled_from([2.03, 5.07]))
def test_icepop_and_tis_equal_their_rules_in_float64(drawn: Drawn, low: float, high: float) -> None:
    args = SimpleNamespace(tis_clip_low=low, tis_clip=high)
    ratio = [
        math.exp(new - old)
        for t, r in zip(drawn.train, drawn.rollout, strict=True)
        for new, old in zip(t, r, strict=True)
    ]
    ones = torch.ones(len(ratio))
    popped, masks, figures = icepop_function(args, pg_loss=ones, **drawn.tensors())
    assert popped.tolist() == pytest.approx([each if low <= each <= high else 0.0 for each in ratio], rel=1e-6)
    assert figures["tis_clipfrac"].tolist() == [float(not low <= each <= high) for each in ratio]
    bounded, _, _ = vanilla_tis_function(args, pg_loss=ones, **drawn.tensors())
    assert bounded.tolist() == pytest.approx([min(max(each, low), high) for each in ratio], rel=1e-6)
    assert [mask.tolist() for mask in masks] == drawn.masks


@settings(max_examples=60, deadline=None)
@given(drawn())
def test_figures_of_mismatch_equal_their_formulas_in_float64(drawn: Drawn) -> None:
    parts = drawn.tensors()
    segments = Segments.of(parts["loss_masks"])
    train, rollout = (segments.join(parts[name], name) for name in ("train_log_probs", "rollout_log_probs"))
    figures = figures_of_mismatch(torch.zeros(len(train)), train, rollout, segments)
    place = 0
    for new, old, mask in zip(*drawn, strict=True):
        means = [math.fsum(v * m for v, m in zip(part, mask, strict=True)) / max(1, sum(mask)) for part in (new, old)]
        for a, b, trained in zip(new, old, mask, strict=True):
            if trained:
                expected = {
                    "mis_training_ppl": math.exp(-means[0]),
                    "mis_rollout_log_ppl": -means[1],
                    "mis_log_ppl_abs_diff": abs(means[1] - means[0]),
                    "mis_ppl_ratio": math.exp(means[1] - means[0]),
                    "mis_kl": b - a,
                    "mis_k3_kl": math.exp(a - b) - (a - b) - 1,
                }
                for name, value in expected.items():
                    assert figures[name][place].item() == pytest.approx(value, rel=1e-6, abs=1e-6), name
            place += 1


def test_bounds_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ImpossibleCombination):
        MisRule.of(AlgorithmSettings(tis_lower_bound=3.0))


def test_mismatch_is_measured_and_nothing_is_corrected() -> None:
    def objective(**chosen: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        new = torch.tensor([-1.0, -2.0])
        return policy_objective(
            log_probs=[new],
            old_log_probs=[new],
            rollout_log_probs=[new - 0.5],
            ref_log_probs=None,
            advantages=[torch.ones(2)],
            loss_masks=[torch.ones(2)],
            rollout_denoms=None,
            entropy=None,
            settings=AlgorithmSettings(**chosen),
        )

    (loss, plain), (measured, figures) = objective(), objective(get_mismatch_metrics=True)
    assert torch.equal(loss, measured)
    assert figures["mis_kl"].item() == -0.5
    assert figures["ois"].item() == 1.0
    assert figures.keys() > plain.keys()
