"""`walls`: what a simulated run asks of each part of the system, as a share of what one such part carries."""

from __future__ import annotations

import statistics
from typing import Annotated, NamedTuple

from schemas.doc import doc
from slime_events.core.config.engine import lease_of
from storage.jetstream.listeners import LISTENERS
from storage.jetstream.own_time import CALLS
from tests.simulation.scale.virtual_run import VirtualRun

SMALL_PER_S = 16_636
"""Small events that one server stores in a second, each on disk before its ack (docs/benchmarks.md, durable_append)."""
ROLLOUTS_PER_S, ROLLOUT_BYTES = 2_665, 33_000
"""Rollouts of 4,096 tokens that it stores in a second, and the bytes of one (the same row)."""
LEADER_SMALL_S, LEADER_ROLLOUT_S = 31e-6, 370e-6
"""CPU of the busiest of three nodes for these two events (`cluster_append`, mean of three runs)."""
DELIVERIES_PER_CORE = 136_000
"""Roll calls that a core of a server delivers in a second: `benchmarks/leases.py` with 64 and with 128 engines."""
DELIVERY_S = 28e-6
"""Time of a taker's core for a roll call that it receives [s], by the same measurement."""


class Wall(NamedTuple):
    """A part of the system, and how much of it a run needs."""

    part: str
    share: Annotated[float, doc("load, as a share of what one such part carries; above 1: it does not carry the run")]
    text: Annotated[str, doc("how the load is computed")]


def server_s(size: float) -> float:
    """Return the time in which a server stores an event of `size` bytes [s], by the two measured sizes."""
    small = 1 / SMALL_PER_S
    return small + size * (1 / ROLLOUTS_PER_S - small) / ROLLOUT_BYTES


def leader_s(size: float) -> float:
    """Return the CPU time of the leader of three nodes for an event of `size` bytes [s]."""
    return LEADER_SMALL_S + size * (LEADER_ROLLOUT_S - LEADER_SMALL_S) / ROLLOUT_BYTES


def walls(run: VirtualRun, seconds: float) -> list[Wall]:
    """Return the shares of a run of `seconds` of virtual time, the largest first."""
    measures, engines = run.measures, run.costs.engines
    rates = {kind: count / seconds for kind, count in measures.events.items()}
    size = {kind: statistics.fmean(sizes) for kind, sizes in measures.sizes.items()}
    calls, listening = engines * CALLS / lease_of(engines), min(engines, LISTENERS + 1)
    fold_s = measures.folding / measures.events.total()
    reading = sum(rate * (statistics.fmean(measures.decoding[kind]) + fold_s) for kind, rate in rates.items())
    deciding = (sum(measures.cycles) + sum(measures.sealing)) / seconds
    storing = sum(rate * server_s(size[kind]) for kind, rate in rates.items())
    leading = sum(rate * leader_s(size[kind]) for kind, rate in rates.items())
    return sorted(
        (
            Wall("one NATS server, events stored", storing, "events/s x (60 us + 9.6 ns a byte)"),
            Wall("a core of the leader of three nodes", leading, "events/s x (31 us + 10.3 ns a byte)"),
            Wall("the conductor, one core", reading + deciding, f"read and fold {reading:.2f}, decide {deciding:.2f}"),
            Wall(
                "a server's core, roll calls",
                calls * (2 * listening + 1) / DELIVERIES_PER_CORE,
                f"{calls:,.0f} calls/s to {listening} listeners and the caller, those of listeners to all",
            ),
            Wall(
                "a listening engine's core, roll calls",
                calls * DELIVERY_S,
                f"{calls:,.0f} calls/s x {1e6 * DELIVERY_S:.0f} us",
            ),
            Wall("the trainer", run.training_s / seconds, f"{run.costs.step_s:g} s a step"),
        ),
        key=lambda wall: -wall.share,
    )
