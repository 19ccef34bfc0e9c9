"""The template of hosts: a copy of an engine's host with SGLang imported, from which the next host is forked.

    first host -- imports SGLang (seconds) -- forks its template, continues as the engine
    template   -- waits at an abstract socket; forks a host for each request
    a later engine of the run on this machine: connects there first, and so starts without the imports

The imports are most of an engine's start on a CPU. The template shares their memory with the hosts and uses no CPU
time. Once no owner of a host is alive, it ends: at once if the parent of the first owner (Ray's raylet) has ended,
otherwise after a delay, in which Serve may start another replica. Not used with CUDA, which does not survive a fork.
"""

import json
import os
import select
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

from schemas.doc import doc
from slime_events.core.child.process_table import parent_of, runs
from storage.own_socket import address, is_ours

LOOK_S = 0.5
UNUSED_S = 30.0
"""Seconds without a living owner: longer than Serve takes to replace a replica."""
ANSWER_S = 2.0
_JOB_BYTES = 4096


class Job(NamedTuple):
    """Connection, folder and owner of a host."""

    connection: socket.socket
    folder: Annotated[Path, doc("The engine's folder.")]
    owner: Annotated[int, doc("Process id of the process that the host serves and ends with.")]


def leave_template(name: str, mine: Job) -> Job:
    """Fork a template, unless one of that name exists. Return the job of this process.

    That is `mine`, or in each host that is forked from the template later, the host's own job.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(address(name))
    except OSError:
        listener.close()
        return mine
    listener.listen()
    if os.fork():
        listener.close()
        return mine
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended hosts leave no zombies
    mine.connection.close()  # otherwise its peer would not notice the first host's end
    return _serve(listener, mine.owner)


def ask_template(name: str, folder: Path, connection_fd: int, log_fd: int) -> int | None:
    """Request a host from the template. Return its process id; None if there is no template."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(ANSWER_S)
        try:
            peer.connect(address(name))
            if not is_ours(peer):
                return None
            job = json.dumps({"folder": str(folder), "owner": os.getpid()}).encode()
            socket.send_fds(peer, [job], [connection_fd, log_fd])
            answer = peer.recv(4)
        except OSError:
            return None
    return int.from_bytes(answer, "big") or None


def _serve(listener: socket.socket, first_owner: int) -> Job:
    """Serve in the template until it ends. In a host that was forked from it, return the host's job."""
    raylet, owners, used = parent_of(first_owner), {first_owner}, time.monotonic()
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
    """Fork one host and return its job, with the connection in the host, with a closed one in the template."""
    peer, _ = listener.accept()
    with peer:
        if not is_ours(peer):
            return None
        peer.settimeout(ANSWER_S)
        try:
            data, fds, *_ = socket.recv_fds(peer, _JOB_BYTES, 2)
            connection_fd, log_fd = fds
            fields = json.loads(data)
        except (OSError, ValueError):
            return None
        job = Job(socket.socket(fileno=connection_fd), Path(fields["folder"]), fields["owner"])
        if not (pid := os.fork()):
            listener.close()
            _become_host(job.folder, log_fd)
            return job
        job.connection.close()
        os.close(log_fd)
        peer.sendall(pid.to_bytes(4, "big"))
        return job


def _become_host(folder: Path, log_fd: int) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (1, 2):
        os.dup2(log_fd, stream)
    os.close(log_fd)
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
