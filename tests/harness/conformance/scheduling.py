"""Families of packing: first fit, Karmarkar-Karp, the schedule over data parallel ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

from actors.megatron.families.registry import architecture_of
from actors.step.data_split import packing_rule
from slime_events.algorithms.packing import PackingRule, first_fit, karmarkar_karp, micro_batches, optimizer_steps
from slime_events.core.config.trainer import TrainerSettings
from tests.harness.conformance.case import Case

ANY = architecture_of(
    {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
    | {"intermediate_size": 8, "vocab_size": 8}
)
"""The rule asks for the model where no limit is given. Every case that packs by tokens gives one."""


def first_fit_pack(case: Case) -> Any:
    return first_fit(case.input["lengths"], case.input["max_tokens_per_bin"])


def balanced_partitions(case: Case) -> Any:
    return karmarkar_karp(case.input["lengths"], case.input["k"], equal_size=case.input["equal_size"])


def schedule(case: Case) -> Any:
    """The trainer's optimizer steps, each dealt out as the trainer deals it, in slime's form."""
    params = case.input
    rule = _rule(params["args"], params["parallel"])
    indices: list[list[list[int]]] = [[] for _ in range(rule.ranks)]
    partitions: list[list[int]] = [[] for _ in range(rule.ranks)]
    counts = []
    steps = optimizer_steps(params["rollout_indices"], params["global_batch_size"])
    for step in steps:
        dealt = micro_batches([params["total_lengths"][index] for index in step.indices], rule)
        counts.append(max(map(len, dealt)))
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


def _rule(options: dict[str, Any], parallel: dict[str, Any]) -> PackingRule:
    """The trainer's rule on GPUs; beside it the multiple that interleaved pipeline stages need."""
    names = ("use_dynamic_batch_size", "max_tokens_per_gpu", "micro_batch_size", "balance_data")
    values = {name: options[name] for name in names if options.get(name) is not None}
    settings = TrainerSettings(**values, context_parallel_size=parallel.get("cp_size", 1))
    rule = packing_rule(settings, ANY, parallel["dp_size"], cpu=False)
    interleaved = parallel.get("vpp_size", 1) > 1
    return dataclasses.replace(rule, multiple=parallel["microbatch_group_size_per_vp_stage"] if interleaved else 1)
