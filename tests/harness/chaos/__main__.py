"""`python -m tests.harness.chaos --kills K --seed S`: kill a real run at random; exit 0 only if all promises held."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.chaos.reference import reference
from tests.harness.chaos.run import chaos
from tests.harness.chaos.schedule import USUAL, Kind, schedule, steps_for
from tests.harness.chaos.settings import ChaosSettings

STOPPED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.chaos",
        description="kill -9 of random processes of a real run, and the outcome",
    )
    parser.add_argument("--kills", type=int, default=30, help="how many processes are killed [30]")
    parser.add_argument("--seed", type=int, default=1, help="of the kinds and the moments [1]")
    parser.add_argument("--steps", type=int, help="training steps [three a kill, eight where rollouts run ahead]")
    parser.add_argument("--max-staleness", type=int, default=0, help="0: synchronous, weights must be equal [0]")
    parser.add_argument(
        "--kinds", help=f"comma between some of {','.join(Kind)} [all but rank, raylet, serve_controller]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--cluster", action="store_true", help="the log on three NATS servers, killed one at a time")
    parser.add_argument("--keep", action="store_true", help="leave the run's folder also where all held")
    parser.add_argument("flags", nargs="*", help="after --: further flags of slime-events train")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # so that the run is ended with this
    struck = tuple(map(Kind, options.kinds.split(","))) if options.kinds else USUAL
    steps = options.steps or steps_for(options.kills, options.max_staleness)
    settings = ChaosSettings(steps=steps, max_staleness=options.max_staleness, extra=tuple(options.flags))
    strikes = schedule(options.kills, options.seed, steps, struck)
    facts = {"seed": options.seed}
    facts |= chaos(settings, strikes, reference(settings), clustered=options.cluster, keep=options.keep)
    text = json.dumps(facts, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return int(bool(facts["broken"]))


if __name__ == "__main__":
    sys.exit(main())
