"""The program of each process of the soak in `test_routes_in_layouts`: four ranks."""

from __future__ import annotations

from tests.megatron.pipeline_ranks import LONGER_END, PIPELINE, Case
from tests.megatron.recomputing import FULL
from tests.megatron.routing_ranks import ALONE, CONTEXT, EXPERTS, TENSOR, run_all

FOUR = {
    "data": Case("qwen3_moe", {}),
    "experts": Case("qwen3_moe", EXPERTS),
    "a stage without experts": Case("glm4_moe", PIPELINE | LONGER_END),
    "stages and experts": Case("qwen3_moe", PIPELINE | ALONE | {"megatron": FULL | EXPERTS["megatron"]}),
    "tensor and context": Case("qwen3_moe", TENSOR | CONTEXT),
    "tensor and stages": Case("qwen3_moe", TENSOR | PIPELINE),
    "tensor and experts": Case("glm4_moe", TENSOR | EXPERTS),
    "context and experts": Case("deepseek_v3", CONTEXT | EXPERTS),
    "tensor and context of GLM-4.5": Case("glm4_moe", TENSOR | CONTEXT),
}


def main() -> None:
    """Run the cases of four ranks."""
    run_all(FOUR, 4)


if __name__ == "__main__":
    main()
