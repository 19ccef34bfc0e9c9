"""The program of each process of `test_prediction`: steps with a multi-token prediction layer on one and two ranks."""

from __future__ import annotations

from tests.megatron.expert_ranks import EXPERTS, FIXED, OVERLAPPED
from tests.megatron.pipeline_ranks import EMPTY_START, LONGER_END, PIPELINE, Case, run_all
from tests.megatron.recomputing import FULL

MTP = {"enable_mtp_training": True, "mtp_loss_scaling_factor": 0.5, "adam_eps": 1e-3}
"""With Adam's usual epsilon, a gradient that is 0 but for rounding would move a weight as far as any other."""
SOME = {"only_train_params_name_list": [r"mtp\.layers\.0\..*experts\.[01]\.", "eh_proj"]}
"""Trained parameters: only some of the layer's experts, of which the second rank has none, and its projection."""
CONTEXT = {"context_parallel_size": 2}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
APART = {"megatron": {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}}
STAGES = PIPELINE | LONGER_END
ALONE = {"only_train_params_name_list": [r"mtp\.layers\.0\."]}
"""The first stage trains nothing."""
TWO = {
    "both": Case("deepseek_v3", TENSOR | APART, common=MTP),
    "stages": Case("deepseek_v3", STAGES, common=MTP),
}
"""Two ranks."""
MORE = {
    "tensor": {
        "tensor": Case("glm4_moe", TENSOR, common=MTP),
        "a pass and none": Case("deepseek_v3", OVERLAPPED | FIXED | {"micro_batch_size": 16}, common=MTP),
        "tensor and experts": Case("deepseek_v3", TENSOR | APART, ["a pass and none-2"], common=MTP),
    },
    "experts": {
        "experts": Case("glm4_moe", EXPERTS, common=MTP),
        "frozen experts": Case("glm4_moe", EXPERTS, common=MTP | SOME),
        "context and experts": Case("deepseek_v3", CONTEXT | EXPERTS, common=MTP),
    },
    "stages": {
        "virtual stages": Case("glm4_moe", PIPELINE | EMPTY_START, common=MTP),
        "stages of GLM": Case("glm4_moe", PIPELINE | {"megatron": LONGER_END["megatron"] | FULL}, common=MTP),
        "the layer alone": Case("glm4_moe", STAGES, common=MTP | ALONE),
    },
    "dense": {
        "tensor of MiMo": Case("mimo", TENSOR, common=MTP),
        "stages of MiMo": Case("mimo", STAGES, common=MTP),
        "context of MiMo": Case("mimo", CONTEXT, common=MTP),
    },
    "latent": {
        "latent stages": Case("glm4_moe_lite", STAGES, common=MTP),
        "latent context": Case("glm4_moe_lite", CONTEXT | {"log_probs_chunk_size": 3}, common=MTP),
        "context of GLM": Case("glm4_moe", CONTEXT, common=MTP),
        "context": Case("deepseek_v3", CONTEXT, common=MTP),
    },
}
"""Two ranks in further layouts, for soaks. Each group is a test, which ends well before its limit."""


def main() -> None:
    """Run the case of two ranks."""
    run_all(TWO, 2)


if __name__ == "__main__":
    main()
