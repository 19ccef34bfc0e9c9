"""Run scenes on three machines that are namespaces of this one: `python -m tests.cluster [--only NAME ...] [--list]`.

Needs root and the programs ip, unshare, nsenter and ss. Takes several minutes on two cores. Exits with 1 if a scene
fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time

from tests.cluster.machines import Machines
from tests.cluster.scenes import SCENES, Reference

PROGRAMS = ("ip", "unshare", "nsenter", "ss")


def missing() -> str | None:
    """Return why no machines can be made here; None if they can."""
    if lacking := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(lacking)} (iproute2, util-linux)"
    return None if os.geteuid() == 0 else "making namespaces needs root"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SCENES), help="scenes; those that compare need 'one machine'")
    parser.add_argument("--list", action="store_true", help="print the scenes")
    arguments = parser.parse_args()
    if arguments.list:
        print(*SCENES, sep="\n")
        return 0
    if reason := missing():
        print(f"not run: {reason}")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which removes the machines
    failed, reference = 0, Reference()
    begun = time.monotonic()
    with Machines() as machines:
        machines.start_rays()
        print(f"{'machines':16} ok      {time.monotonic() - begun:4.0f} s  3, each with a Ray of its own", flush=True)
        for name in arguments.only or SCENES:
            begun = time.monotonic()
            try:
                outcome, detail = "ok", SCENES[name](machines, reference)
            except (AssertionError, TimeoutError) as error:
                outcome, detail, failed = "failed", str(error), failed + 1
            print(f"{name:16} {outcome:6}  {time.monotonic() - begun:4.0f} s  {detail}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
