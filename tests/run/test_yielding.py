"""Who yields the processor to whom."""

from __future__ import annotations

import subprocess
import sys

THREADS = """
import os, threading
from slime_events.core.run.process_environment import TRAINS, yield_to_others
go, end = threading.Event(), threading.Event()
found, before = [], os.getpriority(os.PRIO_PROCESS, 0)  # which a machine's owner may have made lower
def look():
    go.wait()
    found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
threads = [threading.Thread(target=look) for _ in range(3)]
for thread in threads: thread.start()
yield_to_others(TRAINS)
yield_to_others(TRAINS - 5)
go.set()
for thread in threads: thread.join()
print(sorted({*found, os.getpriority(os.PRIO_PROCESS, 0)}) == [max(before, TRAINS)])
"""


def test_all_threads_of_a_process_yield_and_none_comes_back() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr
