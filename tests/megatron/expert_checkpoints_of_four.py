"""The program of each process of the soak in `test_expert_checkpoints`: four ranks."""

from __future__ import annotations

from tests.megatron.expert_checkpoints import BF16, PRECISE, Moved, run_all
from tests.megatron.expert_ranks import EXPERTS, SHARED
from tests.megatron.pipeline_ranks import PIPELINE, WHOLE
from tests.megatron.prediction_ranks import APART, TENSOR

PARTS = {"megatron": SHARED["megatron"] | {"expert_tensor_parallel_size": 2}}
FOUR = {
    "an expert each": Moved({"megatron": {"expert_model_parallel_size": 4}}, WHOLE, BF16),
    "copies": Moved(SHARED),
    "parts of experts": Moved(PARTS, both=BF16),
    "stages": Moved(PIPELINE | EXPERTS, WHOLE),
    "tensor": Moved(TENSOR | APART, both=PRECISE, model="deepseek_v3"),
}
"""Layouts of four ranks."""


def main() -> None:
    """Run the cases of four ranks."""
    run_all(FOUR, 4)


if __name__ == "__main__":
    main()
