"""Children for tests: `python -m tests.child.programs <socket> <parent> <what>`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from slime_events.core.child.frames import LENGTH, receive_frame, send_frame
from slime_events.core.child.inside import connect


def main(descriptor: str, parent: str, what: str) -> None:
    connection = connect(descriptor, parent)
    while (payload := receive_frame(connection)) is not None:
        match what:
            case "echo":
                send_frame(connection, payload)
            case "exit":
                os._exit(3)
            case "half":  # and then the end
                connection.sendall(LENGTH.pack(100) + b"half")
                return
            case "garbage":
                connection.sendall(b"a line that the program prints into its connection\n")
                time.sleep(600)
            case "hang":
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
                time.sleep(600)
            case "family":  # a child in its group, and a child in a group of its own
                sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
                pids = [subprocess.Popen(sleeping, start_new_session=new).pid for new in (False, True)]
                send_frame(connection, " ".join(map(str, pids)).encode())
            case "leave":  # a child that stays behind
                pid = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
                send_frame(connection, str(pid).encode())
                return
            case "environment":
                send_frame(connection, repr([dict(os.environ), os.getcwd(), os.getsid(0) == os.getpid()]).encode())
            case _:
                raise ValueError(what)


if __name__ == "__main__":
    main(*sys.argv[1:])
