"""The program of each process of the soak in `test_prediction`: two ranks in further layouts."""

from __future__ import annotations

from tests.megatron.pipeline_ranks import run_all
from tests.megatron.prediction_ranks import MORE


def main() -> None:
    """Run the cases."""
    run_all(MORE, 2)


if __name__ == "__main__":
    main()
