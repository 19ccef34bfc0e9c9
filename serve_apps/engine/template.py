"""The template of hosts: a copy of an engine's host with SGLang imported, from which the next one is forked.

    first host -- imports SGLang (seconds) -- forks its template, goes on as the engine
    template   -- waits at an abstract socket; each request is forked into a host
    a later engine of the run on this machine: asks there first, and so starts without the imports

The imports are most of an engine's start on a CPU. The template shares their memory with the hosts and uses no time.
Where no owner of a host lives any more it ends: at once if the parent of the first one (Ray's raylet) has ended, else
after a while, in which Serve may start another replica. Not with CUDA, which does not survive a fork.
"""

import json
import os
import select
import signal
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.5
UNUSED_S = 30.0
"""Without a living owner: longer than Serve takes to replace a replica."""
ANSWER_S = 2.0
_JOB_BYTES = 4096


class Job(NamedTuple):
    """What a host needs. owner: pid of the process that it serves and ends with; folder: of its engine."""

    connection: socket.socket
    folder: Path
    owner: int


def runs(pid: int) -> bool:
    """Whether the process is there and not a zombie that waits for init."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def leave_template(name: str, mine: Job) -> Job:
    """Fork a template, if there is none of that name. Returns the job of this process: `mine`, or its own in each host
    that is forked from the template later.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(_address(name))
    except OSError:
        listener.close()
        return mine
    listener.listen()
    if os.fork():
        listener.close()
        return mine
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # hosts that end are nobody's zombies
    mine.connection.close()  # else its other end would not see the first host's end
    return _serve(listener, mine.owner)


def ask_template(name: str, folder: Path, connection_fd: int, log_fd: int) -> int | None:
    """Have a host made of the template: its pid; None where there is no template."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.settimeout(ANSWER_S)
        try:
            asked.connect(_address(name))
            if not _is_ours(asked):
                return None
            job = json.dumps({"folder": str(folder), "owner": os.getpid()}).encode()
            socket.send_fds(asked, [job], [connection_fd, log_fd])
            answer = asked.recv(4)
        except OSError:
            return None
    return int.from_bytes(answer, "big") or None


def _serve(listener: socket.socket, first_owner: int) -> Job:
    """In the template, until it ends; in a host that was forked from it, its job."""
    raylet, owners, used = _parent_of(first_owner), {first_owner}, time.monotonic()
    while True:
        if select.select([listener], [], [], LOOK_S)[0] and (job := _next_host(listener)) is not None:
            if job.connection.fileno() >= 0:
                return job
            owners.add(job.owner)
        if owners := set(filter(runs, owners)):
            used = time.monotonic()
        elif time.monotonic() - used > UNUSED_S or not runs(raylet):
            os._exit(0)


def _next_host(listener: socket.socket) -> Job | None:
    """Fork one host. Its job: with the connection in the host, with a closed one in the template."""
    asked, _ = listener.accept()
    with asked:
        if not _is_ours(asked):
            return None
        asked.settimeout(ANSWER_S)
        try:
            data, fds, *_ = socket.recv_fds(asked, _JOB_BYTES, 2)
            connection_fd, log_fd = fds
            given = json.loads(data)
        except (OSError, ValueError):
            return None
        job = Job(socket.socket(fileno=connection_fd), Path(given["folder"]), given["owner"])
        if not (pid := os.fork()):
            listener.close()
            _become_host(job.folder, log_fd)
            return job
        job.connection.close()
        os.close(log_fd)
        asked.sendall(pid.to_bytes(4, "big"))
        return job


def _become_host(folder: Path, log_fd: int) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (1, 2):
        os.dup2(log_fd, stream)
    os.close(log_fd)
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None


def _address(name: str) -> str:
    return f"\0slime-events-{name}"


def _is_ours(peer: socket.socket) -> bool:
    """Whether a process of this user is at the other end: an abstract socket has no file whose mode would say so."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
