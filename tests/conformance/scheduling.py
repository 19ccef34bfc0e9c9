"""Families of packing: first fit, Karmarkar-Karp, the schedule over data parallel ranks."""

from __future__ import annotations

from typing import Any

from slime_events.algorithms.balance import karmarkar_karp
from slime_events.algorithms.packing import PackingRule, dp_schedule, first_fit

Input = dict[str, Any]


def first_fit_pack(case: Input) -> Any:
    return first_fit(case["lengths"], case["max_tokens_per_bin"])


def balanced_partitions(case: Input) -> Any:
    return karmarkar_karp(case["lengths"], case["k"], equal_size=case["equal_size"])


def schedule(case: Input) -> Any:
    options, parallel = case["args"], case["parallel"]
    dynamic = options["use_dynamic_batch_size"]
    rule = PackingRule(
        dp_size=parallel["dp_size"],
        max_tokens=options["max_tokens_per_gpu"] * parallel["cp_size"] if dynamic else None,
        micro_batch_size=options.get("micro_batch_size", 1),
        align=parallel["microbatch_group_size_per_vp_stage"] if parallel["vpp_size"] > 1 else 1,
    )
    made = dp_schedule(case["total_lengths"], case["rollout_indices"], case["global_batch_size"], rule)
    return {
        "partitions": made.partitions,
        "micro_batch_indices": made.micro_batches,
        "num_microbatches": made.num_microbatches,
        "global_batch_sizes": made.rollouts,
    }
