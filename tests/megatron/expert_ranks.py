"""The program of each process of `test_expert_parallel`: the same steps with experts on one and on several ranks."""

from __future__ import annotations

from tests.megatron.pipeline_ranks import WHOLE, Case, run_all

EXPERTS = {"megatron": {"expert_model_parallel_size": 2}}
SHARED = {"megatron": EXPERTS["megatron"] | WHOLE["megatron"]}
OVERLAPPED = {"megatron": EXPERTS["megatron"] | {"overlap_grad_reduce": True}}
FIXED = {"use_dynamic_batch_size": False, "max_tokens_per_gpu": None}
SOME = {"only_train_params_name_list": [r"layers\.0\..*experts\.[01]\.", r"layers\.1\..*experts\.1\..*fc2"]}
"""Trained parameters of which the second rank has none."""
TWO = {
    "experts": Case("qwen3_moe", EXPERTS),
    "shared state": Case("qwen3_moe", SHARED, ["experts-2"]),
    "two passes and one": Case("qwen3_moe", EXPERTS | FIXED | {"micro_batch_size": 6}),
    "frozen experts": Case("qwen3_moe", EXPERTS, common=SOME),
    "a pass and none": Case("qwen3_moe", OVERLAPPED | FIXED | {"micro_batch_size": 16}),
}
"""Layouts of two ranks."""


def main() -> None:
    """Run the cases of two ranks."""
    run_all(TWO, 2)


if __name__ == "__main__":
    main()
