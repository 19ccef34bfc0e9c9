"""`LOOKS`: all that is looked at, in order of worth. Each is a process of its own: one that fails hides no other.

`python -m tests.harness.gpu.looks NAME --device cuda --folder DIR` is that process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import Scene

ERROR_LINES = 12


@dataclass(frozen=True, slots=True)
class Look:
    """place: "module:function", which takes a `Scene`. alone: it measures time or memory, and nothing else may run
    then. deadline_s: seconds, then it is killed.
    """

    place: str
    alone: bool = False
    deadline_s: float = 150.0


LOOKS: dict[str, Look] = {
    "agreement": Look("agreement:look"),
    "families": Look("families:look", deadline_s=240.0),
    "ways": Look("families:look_ways"),
    "prediction": Look("families:look_prediction"),
    "twice": Look("repeat:look_twice"),
    "twice_experts": Look("repeat:look_twice_experts"),
    "resumed": Look("repeat:look_resumed"),
    "run": Look("whole_run:look"),
    "values": Look("attention:look_values"),
    "twice_large": Look("repeat:look_twice_large", alone=True),
    "recovery": Look("recovery:look", alone=True),
    "turns": Look("turns:look", alone=True),
    "carriers": Look("engines:look_carriers", alone=True, deadline_s=500.0),
    "two_engines": Look("engines:look_two", alone=True, deadline_s=900.0),
    "steps": Look("speed:look_steps", alone=True),
    "deterministic": Look("speed:look_deterministic", alone=True),
    "profile": Look("speed:look_profile", alone=True),
    "experts": Look("experts:look", alone=True),
    "digest": Look("speed:look_digest", alone=True),
    "adam": Look("speed:look_adam", alone=True),
    "attention": Look("attention:look_time", alone=True),
    "logits": Look("speed:look_logits", alone=True),
    "frozen": Look("frozen:look", alone=True),
    "fusions": Look("speed:look_fusions", alone=True),
    "rope": Look("speed:look_rope", alone=True),
}


def start(name: str, scene: Scene, say: Callable[[Row], None]) -> threading.Thread:
    """Begin a look; pass its rows to `say`, from the thread, as they come."""
    thread = threading.Thread(target=_follow, args=(name, scene, say), name=name)
    thread.start()
    return thread


def _follow(name: str, scene: Scene, say: Callable[[Row], None]) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.harness.gpu.looks",
        name,
        "--device",
        scene.device,
        "--folder",
        str(scene.folder),
    ]
    begun, last, look = time.perf_counter(), list[str](), LOOKS[name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    timer = threading.Timer(look.deadline_s, process.kill)
    timer.start()
    with process, scene.folder.joinpath(f"{name}.log").open("w") as log:
        for line in process.stdout or ():
            log.write(line)
            log.flush()
            if row := Row.read(line):
                say(row)
            else:
                last = [*last, line.rstrip()][-ERROR_LINES:]
        code = process.wait()
    timer.cancel()
    seconds = round(time.perf_counter() - begun, 1)
    if code:
        how = f"killed after {look.deadline_s:g} s" if code == -9 else f"ended with {code}"
        say(Row(f"look {name}", f"{how}: {' / '.join(last)}", {"seconds": seconds}))
    else:
        say(Row(f"look {name}", "done", {"seconds": seconds}))


def main() -> int:
    """Run one look here."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.gpu.looks")
    parser.add_argument("name", choices=LOOKS)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    module, function = LOOKS[options.name].place.split(":")
    try:
        getattr(import_module(f"tests.harness.gpu.{module}"), function)(Scene(options.device, options.folder))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
