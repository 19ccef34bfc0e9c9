"""Families of dynamic sampling filters."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from slime_events.algorithms.rollout_figures import drop_metrics
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import should_drop
from slime_events.plugins.filters.dynamic_sampling import check_reward_nonzero_std
from slime_events.plugins.sample import Sample

Input = dict[str, Any]


def nonzero_std(case: Input) -> Any:
    group = [Sample(index=i, group_index=0, reward=reward) for i, reward in enumerate(case["rewards"])]
    return asdict(check_reward_nonzero_std(SimpleNamespace(reward_key=None), group))


def drops(case: Input) -> Any:
    output = DynamicFilterOutput(keep=case["keep"], keep_when_insufficient=case["keep_when_insufficient"])
    return should_drop(output, insufficient=case["remaining_batch_size"] <= case["target_data_size"])


def metrics(case: Input) -> Any:
    return drop_metrics(case["drops"])
