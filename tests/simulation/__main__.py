"""`python -m tests.simulation --engines 10000`: an hour of a large run in virtual time, and its load on each part."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence

from schemas.errors import ConfigError
from tests.simulation.scale.costs import Costs
from tests.simulation.scale.report import report
from tests.simulation.scale.virtual_run import VirtualRun

SIZES = {
    "engines": "number of engines",
    "open-samples": "most open samples",
    "group-size": "samples of a group",
    "max-staleness": "most versions that a sample may be behind",
    "room": "most samples in flight on an engine",
    "seed": "seed of all that is drawn at random",
}
TIMES = {
    "chunk-s": "time between two chunks of a sample; None: the default of such a run",
    "cycle-s": "shortest time between two cycles of the conductor",
    "tokens-per-s": "tokens per second of a sample",
    "mean-length": "mean length of a response, before the limit",
    "grading-s": "mean time of a grading",
    "step-s": "time of a training step",
    "loading-s": "mean time in which an engine loads weights",
    "losses-per-hour": "engines that are lost in an hour",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate and print; 2 if there is no such run."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition(": ")[2])
    parser.add_argument("--seconds", type=float, default=3600.0, help="virtual time to simulate [3600]")
    default = Costs()
    for names, kind in ((SIZES, int), (TIMES, float)):
        for name, text in names.items():
            value = getattr(default, name.replace("-", "_"))
            parser.add_argument(f"--{name}", type=kind, default=value, help=f"{text} [{value}]")
    options = vars(parser.parse_args(argv))
    seconds = options.pop("seconds")
    try:
        run = VirtualRun(Costs(**options))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    gc.disable()  # it would look at the whole state again and again, and nothing here is in a reference cycle
    begun = time.perf_counter()
    run.run(seconds)
    print(report(run, seconds, time.perf_counter() - begun))
    return 0


if __name__ == "__main__":
    sys.exit(main())
