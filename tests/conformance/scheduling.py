"""Families of packing: first fit, Karmarkar-Karp, the schedule over data parallel ranks."""

from __future__ import annotations

from typing import Any

from slime_events.algorithms.packing import PackingRule, first_fit, karmarkar_karp, micro_batches, optimizer_steps

Input = dict[str, Any]


def first_fit_pack(case: Input) -> Any:
    return first_fit(case["lengths"], case["max_tokens_per_bin"])


def balanced_partitions(case: Input) -> Any:
    return karmarkar_karp(case["lengths"], case["k"], equal_size=case["equal_size"])


def schedule(case: Input) -> Any:
    """The trainer's optimizer steps, each dealt out as the trainer deals it, in slime's form."""
    options, parallel = case["args"], case["parallel"]
    assert (parallel["cp_size"], parallel["vpp_size"]) == (1, 1)
    rule = PackingRule(
        max_tokens=options["max_tokens_per_gpu"] if options["use_dynamic_batch_size"] else None,
        micro_batch_size=options.get("micro_batch_size", 1),
        ranks=parallel["dp_size"],
    )
    steps = optimizer_steps(case["rollout_indices"], case["global_batch_size"])
    partitions: list[list[int]] = [[] for _ in range(rule.ranks)]
    indices: list[list[list[int]]] = [[] for _ in range(rule.ranks)]
    counts = []
    for step in steps:
        dealt = micro_batches([case["total_lengths"][index] for index in step.indices], rule)
        counts += {len(batches) for batches in dealt}
        for rank, batches in enumerate(dealt):
            for members in batches:
                first = len(partitions[rank])
                indices[rank].append(list(range(first, first + len(members))))
                partitions[rank] += [step.indices[place] for place in members]
    return {
        "partitions": partitions,
        "micro_batch_indices": indices,
        "num_microbatches": counts,
        "global_batch_sizes": [step.rollouts for step in steps],
    }
