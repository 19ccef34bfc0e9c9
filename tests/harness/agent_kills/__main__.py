"""`python -m tests.harness.agent_kills --install FOLDER`: exit 0 only if every agent that ran kept all promises."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.agent_kills.agents import AGENTS
from tests.harness.agent_kills.install import Installed
from tests.harness.agent_kills.settings import AgentRun
from tests.harness.agent_kills.trial import row, trial

STOPPED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one agent after the other, print a line for each, judge."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.agent_kills",
        description="kill -9 of gateway, engine and conductor under real agents",
    )
    parser.add_argument("--agent", nargs="+", choices=list(AGENTS), default=list(AGENTS), help="which of them [all]")
    parser.add_argument("--install", type=Path, required=True, metavar="FOLDER", help="their packages, made if missing")
    parser.add_argument("--seed", type=int, default=1, help="of the moments [1]")
    parser.add_argument("--kills", type=int, default=6, help="how many processes are killed in a run [6]")
    parser.add_argument("--steps", type=int, default=6, help="training steps [6]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add each agent's figures there, a line for each")
    parser.add_argument("--keep", action="store_true", help="leave the runs' folders also where all held")
    parser.add_argument("flags", nargs="*", help="after --: further flags of slime-events train")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # so that a run is ended with this
    installed, broken = Installed.make(options.install.absolute()), 0
    for name in options.agent:
        if missing := installed.lacks(AGENTS[name]):
            print(f"{name:<16} not run: {missing}", flush=True)
            continue
        settings = AgentRun(installed.command(AGENTS[name]), options.steps, tuple(options.flags))
        facts = {"agent": name} | trial(settings, options.kills, options.seed, keep=options.keep)
        print(row(facts), flush=True)
        for sentence in facts["broken"]:
            print(f"  {sentence}", flush=True)
        broken += bool(facts["broken"])
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(facts) + "\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
