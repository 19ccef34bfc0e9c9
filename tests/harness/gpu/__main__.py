"""`python -m tests.harness.gpu`: what the CUDA path does on this machine's GPU, as a table for docs/gpu.md.

--device cpu tries the looks out without one; what they say then says nothing of a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path

import torch

from slime_events.core.machine.gpus import this_machine
from tests.harness.gpu.looks import LOOKS, start
from tests.harness.gpu.report import Report, Row
from tests.harness.gpu.scene import GIB, Scene

NO_GPU = 2
"""Exit code."""


def refusal() -> str | None:
    """Return why nothing can be looked at; None if torch sees a GPU."""
    if torch.cuda.is_available():
        return None
    problem = this_machine().problem()
    return f"no GPU to look at: {problem or 'this machine has none'}. --device cpu tries the looks out without one"


def machine() -> Row:
    """Return a row about the machine."""
    figures: dict[str, float | int | str] = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if not torch.cuda.is_available():
        return Row("machine", "CPU: these rows say nothing of a GPU", figures)
    about = torch.cuda.get_device_properties(0)
    driver = this_machine().driver or "unknown"
    figures |= {"driver": driver, "CUDA": str(torch.version.cuda), "memory, GiB": about.total_memory / GIB}
    return Row("machine", f"{torch.cuda.device_count()} x {about.name}", figures)


def main() -> int:
    """Run the looks and print the table; return 2 without a GPU, 1 if a look failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=LOOKS, default=list(LOOKS), metavar="NAME", help=", ".join(LOOKS))
    parser.add_argument("--out", type=Path, help="folder for gpu.md, gpu.json and what each look printed")
    options = parser.parse_args()
    if options.device == "cuda" and (reason := refusal()):
        print(f"error: {reason}", file=sys.stderr)
        return NO_GPU
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    report = Report(options.out)
    report.add(machine())
    with tempfile.TemporaryDirectory(prefix="slime-gpu-") as folder:
        scene, lock = Scene(options.device, Path(folder)), threading.Lock()

        def say(row: Row) -> None:
            with lock:
                report.add(row)

        scene.model("middle")
        together = [name for name in options.only if not LOOKS[name].alone]
        if scene.on_gpu:
            running = [start(name, scene, say) for name in together]
            if any(LOOKS[name].alone for name in options.only):
                scene.model("large")
            for thread in running:
                thread.join()
            together = []
        for name in options.only:
            if name in together or LOOKS[name].alone:
                start(name, scene, say).join()
        if options.out is not None:
            for log in Path(folder).glob("*.log"):
                (options.out / log.name).write_bytes(log.read_bytes())
    return int(any(row.name.startswith("look ") and row.seen != "done" for row in report.rows))


if __name__ == "__main__":
    sys.exit(main())
