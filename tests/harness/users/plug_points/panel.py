"""--custom-generate-function-path: a panel of two answers with their rewards, by slime's group call."""

from __future__ import annotations

import copy

from called import note
from slime.rollout.sglang_rollout import generate_and_rm_group
from slime.utils.types import Sample


async def generate(args, sample: Sample, sampling_params) -> list[Sample]:
    note("panel")
    panel = [copy.deepcopy(sample) for _ in range(2)]
    panel = await generate_and_rm_group(args, panel, {**sampling_params, "max_new_tokens": 4})
    best = max(panel, key=lambda member: member.reward)
    for member in panel:
        member.metadata["best"] = member is best
    return panel
