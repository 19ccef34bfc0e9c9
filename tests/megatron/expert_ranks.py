"""The program of each process of `test_expert_parallel`: the same steps with experts on one and on several ranks."""

from __future__ import annotations

from tests.megatron.pipeline_ranks import WHOLE, Case, run_all

EXPERTS = {"megatron": {"expert_model_parallel_size": 2}}
SHARED = {"megatron": EXPERTS["megatron"] | WHOLE["megatron"]}
OVERLAPPED = {"megatron": EXPERTS["megatron"] | {"overlap_grad_reduce": True}}
FIXED = {"use_dynamic_batch_size": False, "max_tokens_per_gpu": None}
TWO = {
    "experts": Case("qwen3_moe", EXPERTS),
    "shared state": Case("qwen3_moe", SHARED, ["experts"]),
    "two passes and one": Case("qwen3_moe", EXPERTS | FIXED | {"micro_batch_size": 6}),
    "a pass and none": Case("qwen3_moe", OVERLAPPED | FIXED | {"micro_batch_size": 16}),
}
"""Layouts of two ranks."""


def main() -> None:
    """Run the cases of two ranks."""
    run_all(TWO, 2)


if __name__ == "__main__":
    main()
