"""`facts_of`: the machines of a plan, as they are now or as flags describe them."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import InvalidValue
from slime_events.core.machine.gpus import Machine
from slime_events.core.planning.assumptions import GIB
from slime_events.core.planning.facts import Facts
from slime_events.core.planning.needs import Needs

DEFAULT_GPUS, DEFAULT_GIB = 8, 80.0
"""GPUs of a machine, and their memory, if neither flags nor machines have them."""


def facts_of(machines: Sequence[Machine]) -> Facts:
    """Return the GPUs of machines, and the memory of the smallest."""
    able = [machine for machine in machines if machine.has_gpus]
    sizes = [machine.gpu_bytes for machine in able]
    measured = [size for size in sizes if size is not None]
    counts = tuple(len(machine.seen) or machine.listed or 0 for machine in able)
    return Facts(counts, min(measured) if len(measured) == len(sizes) and measured else None, source="the machines")


def described(nodes: int | None, each: int | None, gib: float | None, host_gib: float | None, needs: Needs) -> Facts:
    """Return machines as flags describe them. nodes: None: as many as the run needs. Raises InvalidValue."""
    numbers = {"--nodes": nodes, "--gpus-per-node": each, "--gpu-memory-gb": gib, "--host-memory-gb": host_gib}
    for flag, value in numbers.items():
        if value is not None and not 0 < value < 1e6:
            raise InvalidValue(f"{flag} {value}: it must be above 0")
    size = each or min(DEFAULT_GPUS, max(1, needs.total))
    if nodes is None:
        apart = -(-needs.ranks // size) + -(-needs.engines // max(1, size // needs.each))
        nodes = -(-needs.total // size) if needs.shared or needs.each > size else apart
        nodes = min(nodes, -(-needs.total // size)) if needs.total <= size else nodes
        if needs.groups:
            nodes = _nodes_for(needs, size)
    host = None if host_gib is None else int(host_gib * GIB)
    return Facts((size,) * max(1, nodes), int((gib or DEFAULT_GIB) * GIB), host, added=None if each else DEFAULT_GPUS)


def _nodes_for(needs: Needs, size: int) -> int:
    """Return the fewest machines of that size on which all groups fit; enough for the GPUs if none is large enough."""
    least, engines = -(-needs.total // size), sum(group.engines for group in needs.groups)
    return next((count for count in range(least, least + engines + 1) if needs.places((size,) * count)), least)
