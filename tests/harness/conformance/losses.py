"""Families of the loss: KL, policy and value losses, corrections, reduction."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor

from actors.step.log_probs import log_probs_and_entropy
from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.algorithms.clipped_loss import clipped_policy_loss
from slime_events.algorithms.estimators.cispo import cispo_loss
from slime_events.algorithms.estimators.estimator import clip_range
from slime_events.algorithms.estimators.gspo import gspo_kl
from slime_events.algorithms.mis import Level, MisRule, Mode, mis_weights
from slime_events.algorithms.objective import approx_kl, opsm_mask, token_weights, truncated
from slime_events.algorithms.opd import distil
from slime_events.algorithms.segments import Segments
from slime_events.algorithms.value_model import value_objective
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.combinations import impossible
from slime_events.core.config.settings import TrainSettings
from tests.harness.conformance.case import Case, UnknownShape

Rows = list[list[float]]


def algorithm(**values: Any) -> AlgorithmSettings:
    """Settings, checked as those of a run are. Raises InvalidValue, ImpossibleCombination for a value among these."""
    try:
        settings = msgspec.convert(values, AlgorithmSettings)
    except msgspec.ValidationError as error:
        raise InvalidValue(str(error)) from error
    for problem in impossible(TrainSettings(algorithm=settings)):
        if problem.partition(" is ")[0] in values:
            raise ImpossibleCombination(problem)
    return settings


def floats(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def tensors(rows: Rows) -> list[Tensor]:
    return [floats(row) for row in rows]


def flat(rows: Rows) -> Tensor:
    return torch.cat(tensors(rows))


def as_rows(values: list[Any]) -> Rows:
    """One sample's values, or those of several samples, as several."""
    return values if values and isinstance(values[0], list) else [values]


def segments_of(masks: Rows | list[float] | None, like: Rows) -> Segments:
    """Segments of the masks; without them every token of `like` is trained on."""
    return Segments.of(tensors(as_rows(masks)) if masks is not None else [torch.ones(len(row)) for row in like])


def split(segments: Segments, values: Tensor) -> Rows:
    return [part.tolist() for part in segments.split(values)]


def kl(case: Case) -> Any:
    params = case.input
    ratio = params.get("importance_ratio")
    kind = algorithm(kl_loss_type=params["kl_loss_type"]).kl_loss_type
    values = approx_kl(
        floats(params["log_probs"]), floats(params["log_probs_base"]), kind, None if ratio is None else floats(ratio)
    )
    return values.tolist()


def _ppo_kl(params: dict[str, Any]) -> Tensor:
    """Return `ppo_kl`, or calculate it from the ratio that a case has."""
    if "ppo_kl" in params:
        return floats(params["ppo_kl"])
    name = next((name for name in params if name.startswith("ratio")), None)
    if name is None:
        raise UnknownShape(f"neither ppo_kl nor ratios in {sorted(params)}")
    return -floats(params[name]).log()


def _clips(params: dict[str, Any]) -> tuple[float, float, float | None]:
    names = ("eps_clip", "eps_clip_high", "eps_clip_c")
    settings = algorithm(**{name: params[name] for name in names if name in params})
    return (*clip_range(settings), settings.eps_clip_c)


def policy_loss(case: Case) -> Any:
    losses, clipped = clipped_policy_loss(_ppo_kl(case.input), floats(case.input["advantages"]), *_clips(case.input))
    return {"pg_losses": losses.tolist(), "clipfrac": clipped.tolist()}


def cispo(case: Case) -> Any:
    low, high, _ = _clips(case.input)
    log_probs, advantages = floats(case.input["log_probs"]), floats(case.input["advantages"])
    losses, clipped = cispo_loss(_ppo_kl(case.input), log_probs, advantages, low, high)
    return {"pg_losses": losses.tolist(), "clipfrac": clipped.tolist()}


def gspo(case: Case) -> Any:
    params = case.input
    segments = segments_of(params.get("loss_masks"), params["log_probs"])
    ppo_kl = gspo_kl(flat(params["old_log_probs"]) - flat(params["log_probs"]), segments)
    return {"ppo_kl": ppo_kl.tolist(), "ratio=exp(-ppo_kl)": (-ppo_kl).exp().tolist()}


def opsm(case: Case) -> Any:
    params = case.input
    segments = segments_of(params.get("loss_masks"), params["log_probs"])
    log_ratio = flat(params["old_log_probs"]) - flat(params["log_probs"])
    delta = algorithm(**{name: params[name] for name in ("opsm_delta",) if name in params}).opsm_delta
    mask = opsm_mask(log_ratio, flat(params["advantages"]), segments, delta)
    clipped = ((1 - mask) * token_weights(segments, per_token=False)).sum()
    return {"mask": mask.tolist(), "clipfrac": clipped.item()}


def tis(case: Case) -> Any:
    """slime's two corrections: `vanilla_tis_function` bounds the weight, `icepop_function` leaves the token out."""
    params = case.input
    train, rollout = flat(as_rows(params["train_log_probs"])), flat(as_rows(params["rollout_log_probs"]))
    names = ("tis_clip_low", "tis_clip")
    settings = algorithm(**{name: params[name] for name in names if name in params})
    low, high = settings.tis_clip_low, settings.tis_clip
    correction = truncated(train, rollout, low, high)
    weight, clipped = correction.weight, correction.clipped
    if "icepop" in case.symbol:
        rule = MisRule(mode=Mode.MASK, lower=low, upper=high, veto=None)
        ratio, kept = mis_weights(train, rollout, segments_of(None, [train.tolist()]), rule)
        weight, clipped = ratio * kept, 1 - kept
    elif "tis" not in case.symbol:
        raise UnknownShape(f"a correction called {case.symbol!r}")
    return {
        "pg_loss": (floats(params["pg_loss"]) * weight).tolist(),
        "tis": correction.ratio.tolist(),
        "tis_clipfrac": clipped.tolist(),
        "tis_abs": (correction.ratio - 1).abs().tolist(),
    }


def mis(case: Case) -> Any:
    """One sample or several."""
    params = case.input
    train, rollout = as_rows(params["train_log_probs"]), as_rows(params["rollout_log_probs"])
    segments = segments_of(params.get("loss_masks", params.get("loss_mask")), train)
    lower, upper = params["bounds"]
    rejects = params.get("use_rs", False)
    rule = MisRule(
        level=Level(params["tis_level"]),
        mode=Mode(params["tis_mode"]),
        lower=1 / upper if lower is None else lower,
        upper=upper,
        reject=rejects,
        veto=params.get("veto") if rejects else None,
        batch_normalize=params.get("batch_normalize", False),
    )
    weights, mask = mis_weights(flat(train), flat(rollout), segments, rule)
    return {"weights": split(segments, weights), "modified_masks": split(segments, mask)}


def opd(case: Case) -> Any:
    """One sample or several."""
    params = case.input
    if params["student_log_probs"] is None:  # a pipeline stage without logits changes nothing
        return {"advantages": params["advantages"]}
    several = isinstance(params["advantages"][0], list)
    if params.get("teacher_log_probs") is None:
        raise InvalidValue("distillation needs the teacher's log-probs")
    rows = {name: as_rows(params[name]) for name in ("advantages", "student_log_probs", "teacher_log_probs")}
    segments = segments_of(None, rows["advantages"])
    coef = params.get("opd_kl_coef", 1.0)
    advantages, reverse_kl = distil(*map(flat, rows.values()), coef)
    results = {"advantages": advantages, "opd_reverse_kl": reverse_kl}
    return {name: split(segments, value) if several else value.tolist() for name, value in results.items()}


def value_loss(case: Case) -> Any:
    params = case.input
    values, old = (as_rows(params[name]) for name in ("new_values_at_response", "old_values"))
    segments = segments_of(params.get("loss_masks", params.get("loss_mask")), old)
    loss, figures = value_objective(
        values=tensors(values),
        old_values=tensors(old),
        returns=tensors(as_rows(params["returns"])),
        loss_masks=segments.split(segments.mask),
        rollout_denoms=None,
        settings=algorithm(
            value_clip=params["value_clip"], calculate_per_token_loss=params.get("calculate_per_token_loss", False)
        ),
    )
    return {"loss": loss.item(), "value_clipfrac": figures["value_clipfrac"].item()}


class _Alone:
    """A tensor parallel group of one rank, as far as the trainer looks at it."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def logprob_entropy(case: Case) -> Any:
    """The trainer's pass over the logits. What top-p left out is cut off before; the entropy is of all logits."""
    params = case.input
    tokens = torch.tensor(params["tokens"], dtype=torch.int64)
    if not len(tokens):
        return {"log_probs": [], "entropy": []}
    kept = logits = torch.tensor(params["logits"], dtype=torch.float32)
    if (mask := params.get("log_prob_keep_mask")) is not None:
        kept = logits.masked_fill(~torch.tensor(mask).scatter(-1, tokens[:, None], True), -torch.inf)
    log_probs, _ = log_probs_and_entropy(kept, tokens, _Alone())
    _, entropy = log_probs_and_entropy(logits, tokens, _Alone())
    return {"log_probs": log_probs.tolist(), "entropy": entropy.tolist()}


def loss_reduce(case: Case) -> Any:
    params = case.input
    lengths, values = params.get("response_lengths"), flat(as_rows(params["x"]))
    segments = segments_of(params.get("loss_masks"), [[0.0] * length for length in lengths or [len(values)]])
    per_token, denoms = params.get("calculate_per_token_loss", False), params.get("sample_denoms")
    return (values * token_weights(segments, per_token=per_token, rollout_denoms=denoms)).sum().item()
