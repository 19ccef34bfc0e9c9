"""Families of dynamic sampling filters."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from slime_events.algorithms.pass_rate import drop_metrics
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import should_drop
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample
from tests.harness.conformance.case import Case

HOME = "slime.rollout.filter_hub.dynamic_sampling_filters"


def filter_of(path: str | None) -> Any:
    """A filter by slime's path, or by its name alone, as a command line names it; None keeps every group."""
    if path is None:
        return lambda *_args, **_names: True
    return load_function(path if "." in path or ":" in path else f"{HOME}.{path}")


def nonzero_std(case: Case) -> Any:
    """The filter that the case's symbol names."""
    key = case.input.get("reward_key")
    group = [Sample(index=i, group_index=0, reward=reward) for i, reward in enumerate(case.input["rewards"])]
    name = case.symbol.rpartition(".")[2] or "check_reward_nonzero_std"
    return asdict(filter_of(name)(SimpleNamespace(reward_key=key), group))


def drops(case: Case) -> Any:
    params = case.input
    output = DynamicFilterOutput(
        keep=params["keep"],
        reason=params.get("reason"),
        keep_when_insufficient=params.get("keep_when_insufficient", False),
    )
    return should_drop(output, insufficient=params["remaining_batch_size"] <= params["target_data_size"])


def metrics(case: Case) -> Any:
    return drop_metrics(case.input["drops"])
