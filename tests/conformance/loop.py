"""Families of the rollout loop, by the conductor's own decisions: dynamic sampling, rollouts under way at its end."""

from __future__ import annotations

from typing import Any

from slime_events.algorithms.rollout_figures import drop_metrics
from slime_events.plugins.filters.dynamic_sampling import (
    check_reward_nonzero_std,
    check_reward_nonzero_std_with_fallback,
)
from tests.conformance.fan_out import fan_out_at_a_boundary
from tests.conformance.miniature import Miniature

Input = dict[str, Any]

FILTERS = {
    "check_reward_nonzero_std": check_reward_nonzero_std,
    "check_reward_nonzero_std_with_fallback": check_reward_nonzero_std_with_fallback,
}


def dynamic_sampling(case: Input) -> Any:
    """Groups end one after the other until the step is sealed; what is left is there for the next step."""
    mini = Miniature(
        case["rollout_batch_size"],
        case["n_samples_per_prompt"],
        case["over_sampling_batch_size"],
        case["rewards_by_group"],
        FILTERS[case["filter"].rpartition(".")[2]],
    )
    for group in range(len(case["rewards_by_group"])):
        if mini.sealed() is not None:
            break
        mini.end(group)
        mini.settle()
    left = mini.carried_over()
    return {
        "get_samples_calls": mini.draws,
        "kept_group_indices": mini.sealed(),
        "metrics": drop_metrics(mini.drop_reasons()),
        "recycled_group_indices": [int(group.group[1:]) for group in left],
        "recycled_start_rollout_id": [group.version for group in left],
    }


def partial_rollout(case: Input) -> Any:
    if "drawn_groups" not in case:
        return fan_out_at_a_boundary()
    drawn, target = case["drawn_groups"], case["target"]
    rewards = [[1.0]] * drawn
    mini = Miniature(target, 1, drawn, rewards, lambda *_: True, partial_rollout=case["partial_rollout"])
    for group in range(case["completing_in_same_batch"], drawn):
        mini.begin(group)
    for group in range(case["completing_in_same_batch"]):
        mini.end(group)
    mini.settle()
    for group in range(case["completing_in_same_batch"], drawn):
        mini.rest(group)
    kept, recycled = mini.sealed() or [], mini.carried_over()
    return {"kept": len(kept), "recycled": len(recycled), "lost": drawn - len(kept) - len(recycled)}
