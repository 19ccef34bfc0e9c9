"""The program of each process of a soak in `test_prediction`: two ranks in a group of layouts.

The group is that with the name of the folder of results.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.megatron.pipeline_ranks import run_all
from tests.megatron.prediction_ranks import MORE


def main() -> None:
    """Run the cases of a group."""
    run_all(MORE[Path(sys.argv[2]).name], 2)


if __name__ == "__main__":
    main()
