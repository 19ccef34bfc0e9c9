"""The program of each process of the soak in `test_pipeline`: four ranks, with tensor or data parallel ranks too."""

from __future__ import annotations

from tests.megatron.pipeline_ranks import LATER, PIPELINE, VIRTUAL, WHOLE, Case, run_all
from tests.megatron.tiny import FAMILIES, WITH_EXPERTS


def has_experts(family: str) -> bool:
    """Return whether a layer has experts; deepseek's have them from the third layer on."""
    return family in WITH_EXPERTS or family.startswith("deepseek")


FOUR = {
    family: Case(family, PIPELINE if has_experts(family) else PIPELINE | {"tensor_model_parallel_size": 2})
    for family in FAMILIES
}
FOUR["four stages"] = Case("tied", {"pipeline_model_parallel_size": 4})
FOUR["tied"] = Case("tied", PIPELINE | {"tensor_model_parallel_size": 2})
FOUR["shared state"] = Case("tied", PIPELINE | WHOLE)
FOUR["virtual"] = Case("tied", PIPELINE | {"megatron": VIRTUAL | WHOLE["megatron"]}, ["tied-4", "four stages-4"])
FOUR["frozen stage"] = Case("tied", PIPELINE | {"tensor_model_parallel_size": 2}, common=LATER)
FOUR["frozen stages"] = Case("tied", {"pipeline_model_parallel_size": 4}, ["frozen stage-4"], LATER)
FOUR["frozen, shared state"] = Case("tied", PIPELINE | WHOLE, ["frozen stage-4", "frozen stages-4"], LATER)


def main() -> None:
    """Run the cases of four ranks."""
    run_all(FOUR, 4)


if __name__ == "__main__":
    main()
