"""The program of each process of the soak in `test_expert_parallel`: four ranks."""

from __future__ import annotations

from tests.megatron.expert_ranks import EXPERTS, SHARED, SOME
from tests.megatron.pipeline_ranks import PIPELINE, Case, run_all

FOUR = {
    "an expert each": Case("qwen3_moe", {"megatron": {"expert_model_parallel_size": 4}}),
    "copies": Case("qwen3_moe", EXPERTS),
    "copies, shared state": Case("qwen3_moe", SHARED, ["copies-4"]),
    "parts of experts": Case("qwen3_moe", {"megatron": EXPERTS["megatron"] | {"expert_tensor_parallel_size": 2}}),
    "stages": Case("qwen3_moe", PIPELINE | EXPERTS),
    "frozen experts": Case("qwen3_moe", PIPELINE | EXPERTS, common=SOME),
    "frozen experts, shared state": Case("qwen3_moe", SHARED, ["frozen experts-4"], SOME),
}


def main() -> None:
    """Run the cases of four ranks."""
    run_all(FOUR, 4)


if __name__ == "__main__":
    main()
