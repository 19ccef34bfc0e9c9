"""`NodeLook`: an actor that looks at the machine that it is on, for `doctor`."""

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from actors.trainer.ranks import rendezvous_address
from slime_events.core.machine.node_facts import NodeFacts, read_facts
from slime_events.core.run.network import listen_towards
from slime_events.core.run.shared_places import SharedPlace, problem_of

KNOCK_S = 5.0
LATE_S = 5.0
"""Seconds for a new file to show."""
MEET_S = 60.0


class NodeLook:
    """One machine of a Ray. address: of it on Ray's network. variables: that the URLs of places refer to."""

    def __init__(self, address: str, variables: dict[str, str]) -> None:
        self._address, self._doors = address, list[socket.socket]()
        os.environ.update(variables)

    def facts(self, has_gpus: bool) -> bytes:
        """Return its `NodeFacts` in JSON."""
        return msgspec.json.encode(read_facts(has_gpus=has_gpus))

    def clock(self) -> int:
        """Return its UTC [ns]."""
        return time.time_ns()

    def door(self) -> int:
        """Listen on its address, and return the port."""
        door = socket.create_server((self._address, 0))
        self._doors.append(door)
        return int(door.getsockname()[1])

    def taken(self, ports: Sequence[int]) -> dict[int, str]:
        """Return the ports of its address that are taken, with the system's words."""
        taken = {}
        for port in ports:
            try:
                socket.create_server((self._address, port)).close()
            except OSError as error:
                taken[port] = error.strerror or str(error)
        return taken

    def knock(self, doors: dict[str, int]) -> dict[str, str]:
        """Connect to the doors of the others. Returns those that it does not reach, with the reasons."""
        closed = {}
        for address, port in doors.items():
            try:
                socket.create_connection((address, port), timeout=KNOCK_S).close()
            except OSError as error:
                closed[address] = error.strerror or str(error)
        return closed

    def problems(self, places: Sequence[SharedPlace]) -> list[str]:
        """Return what it does not see as the machine of `doctor` does."""
        return [problem for place in places if (problem := problem_of(place, LATE_S))]

    def meeting(self) -> str:
        """Return `host:port` at which the machines can meet on this one."""
        return rendezvous_address(self._address)

    def add_up(self, rank: int, ranks: int, store: str, *, on_gpus: bool) -> float:
        """Add up 1 over all machines, as ranks of a trainer do, and return the sum.

        store: `host:port` of the meeting, on rank 0's machine. on_gpus: by NCCL, on the first GPU.
        """
        import torch
        from torch import distributed

        listen_towards(store.rpartition(":")[0])
        device = torch.device("cuda", 0) if on_gpus else torch.device("cpu")
        backend, limit = "nccl" if on_gpus else "gloo", timedelta(seconds=MEET_S)
        distributed.init_process_group(
            backend, init_method=f"tcp://{store}", rank=rank, world_size=ranks, timeout=limit
        )
        try:
            tensor = torch.ones(1, device=device)
            distributed.all_reduce(tensor)
            return float(tensor)
        finally:
            with contextlib.suppress(RuntimeError):  # another machine has not answered
                distributed.destroy_process_group()


def facts_of(answer: bytes) -> NodeFacts:
    """Decode `NodeLook.facts`."""
    return msgspec.json.decode(answer, type=NodeFacts)
