"""The program of each process of `test_prediction`: steps with a multi-token prediction layer on one and two ranks."""

from __future__ import annotations

from tests.megatron.expert_ranks import FIXED, OVERLAPPED, SHARED
from tests.megatron.pipeline_ranks import Case, run_all

MTP = {"enable_mtp_training": True, "mtp_loss_scaling_factor": 0.5}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
APART = {"megatron": {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}}
TWO = {
    "tensor": Case("glm4_moe", TENSOR, also=MTP),
    "experts": Case("glm4_moe", SHARED, also=MTP),
    "a pass and none": Case("deepseek_v3", OVERLAPPED | FIXED | {"micro_batch_size": 16}, also=MTP),
    "both": Case("deepseek_v3", TENSOR | APART, also=MTP),
}
"""Layouts of two ranks."""


def main() -> None:
    """Run the cases of two ranks."""
    run_all(TWO, 2)


if __name__ == "__main__":
    main()
