"""The program of each process of a soak in `test_prediction`: four ranks in a group of layouts.

The group is that with the name of the folder of results.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.megatron.expert_ranks import EXPERTS, FIXED
from tests.megatron.pipeline_ranks import LONGER_END, PIPELINE, WHOLE, Case, run_all
from tests.megatron.prediction_ranks import CONTEXT, MTP, STAGES, TENSOR

APART = {"megatron": {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1} | LONGER_END["megatron"]}
SHARED = {"megatron": LONGER_END["megatron"] | WHOLE["megatron"]}
IDLE = {"megatron": EXPERTS["megatron"] | LONGER_END["megatron"]} | FIXED | {"micro_batch_size": 16}
FOUR = {
    "tensor": {
        "tensor and stages": Case("deepseek_v3", PIPELINE | TENSOR | APART, common=MTP),
        "tensor, stages of GLM": Case("glm4_moe", STAGES | TENSOR, common=MTP),
    },
    "data": {
        "data and stages": Case("deepseek_v3", PIPELINE | SHARED, common=MTP),
        "a pass and none": Case("deepseek_v3", PIPELINE | IDLE, common=MTP),
    },
    "context": {
        "tensor and context": Case("glm4_moe", CONTEXT | TENSOR, common=MTP),
        "stages and context": Case("glm4_moe_lite", STAGES | CONTEXT, common=MTP),
    },
    "context and experts": {
        "stages, context and experts": Case("deepseek_v3", PIPELINE | CONTEXT | APART, common=MTP),
    },
}
"""Layouts of four ranks. Each group is a test, which ends well before its limit."""


def main() -> None:
    """Run the cases of a group."""
    run_all(FOUR[Path(sys.argv[2]).name], 4)


if __name__ == "__main__":
    main()
