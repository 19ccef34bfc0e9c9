"""Who yields the processor to whom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slime_events.core.run.process_environment import NICE_BACKGROUND

THREADS = """
import os, threading
from slime_events.core.run.process_environment import NICE_TRAINING, yield_to_others
go, end = threading.Event(), threading.Event()
found, before = [], os.getpriority(os.PRIO_PROCESS, 0)  # which a machine's owner may have made lower
def look():
    go.wait()
    found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
threads = [threading.Thread(target=look) for _ in range(3)]
for thread in threads: thread.start()
yield_to_others(NICE_TRAINING)
yield_to_others(NICE_TRAINING - 5)
go.set()
for thread in threads: thread.join()
print(sorted({*found, os.getpriority(os.PRIO_PROCESS, 0)}) == [max(before, NICE_TRAINING)])
"""


def test_all_threads_of_a_process_yield_and_none_comes_back() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr


IDLE = """
import os, threading
from slime_events.core.run.process_environment import NICE_IDLE, yield_to_others
go, found = threading.Event(), []
def look():
    go.wait()
    found.append(os.sched_getscheduler(threading.get_native_id()))
before = threading.Thread(target=look)
before.start()
yield_to_others(NICE_IDLE)
go.set()
after = threading.Thread(target=look)
after.start()
before.join()
after.join()
print({*found, os.sched_getscheduler(0)} == {os.SCHED_IDLE}, os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the class is Linux's")
def test_a_process_that_takes_what_nobody_else_wants_does_so_in_all_threads_that_it_has_and_starts() -> None:
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "19"], done.stderr


SESSION = """
import sys
from pathlib import Path
from slime_events.core.run.process_environment import yield_to_others
yield_to_others(int(sys.argv[1]))
print(Path("/proc/self/autogroup").read_text().split()[-1])
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the system does not group processes by session")
@pytest.mark.parametrize(
    ("nice", "leads", "niceness"), [(NICE_BACKGROUND, True, "19"), (NICE_BACKGROUND, False, "0"), (15, True, "0")]
)
def test_a_background_process_lowers_the_session_that_it_leads(nice: int, leads: bool, niceness: str) -> None:
    command = [sys.executable, "-c", SESSION, str(nice)]
    if not leads:  # its parent leads the session
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r}, check=True)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, start_new_session=True)
    assert done.stdout.strip() == niceness, done.stderr
