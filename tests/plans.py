"""Evaluations in plans for tests: sets by name alone, all of them alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.rollouts import Sampling
from slime_events.core.config.save_steps import SaveSteps
from slime_events.loop.conductor.plan import EvalPlan


def fields_of_plan(changes: Mapping[str, Any], sampling: Sampling) -> dict[str, Any]:
    """Fields of a plan: `eval_names`, `eval_samples` and `eval_sampling` become `evals`, `checkpoint_every` becomes
    `saves`. sampling: of training.
    """
    fields = dict(changes)
    if "checkpoint_every" in fields:
        fields["saves"] = SaveSteps(fields.pop("checkpoint_every"))
    names, samples = fields.pop("eval_names", ()), fields.pop("eval_samples", 1)
    plan = EvalPlan(sampling=fields.pop("eval_sampling", None) or fields.get("sampling", sampling), samples=samples)
    return {"evals": dict.fromkeys(names, plan), **fields}
