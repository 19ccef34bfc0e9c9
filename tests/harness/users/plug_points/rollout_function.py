"""--rollout-function-path, --eval-function-path: slime's own generation, of which the worst groups are trained on."""

from __future__ import annotations

import asyncio

from called import note
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group
from slime.utils.async_utils import run


async def generate_all(args, drawn):
    params = GenerateState(args).sampling_params
    return await asyncio.gather(*(generate_and_rm_group(args, group, params.copy()) for group in drawn))


def worst(args, rollout_id, data_source, evaluation=False) -> RolloutFnTrainOutput:
    groups = run(generate_all(args, data_source.get_samples(args.rollout_batch_size + 1)))
    groups.sort(key=lambda group: sum(sample.reward for sample in group))
    note("worst", step=rollout_id)
    return RolloutFnTrainOutput(groups[: args.rollout_batch_size], {"rollout/left_out": 1})


def apart(args, rollout_id, data_source, evaluation=True) -> RolloutFnEvalOutput:
    note("apart", version=rollout_id)
    return RolloutFnEvalOutput({"apart": {"rewards": [0.25, 0.75], "truncated": [False, True], "samples": []}})
