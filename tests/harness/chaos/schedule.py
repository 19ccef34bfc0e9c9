"""`schedule`: which process is killed when, as a pure function of a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_DELAY_S = 1.5
"""A step of the small run takes about half of it, so that every moment of a step is met."""
LONGEST_IN_TURN_S = 0.3
"""Likewise about half of an agent's turn, after its begin."""
OVERLAPPING = 0.2
"""Share of the kills that do not wait for the run to have recovered from the one before."""
STEPS_PER_KILL, STEPS_PER_KILL_AHEAD = 3, 8
"""Steps of a run that is made for its kills: more than a kill and the wait before it take. If rollouts run ahead of
training (staleness above 0), steps are shorter, and continue in most recoveries: 200 kills took 1,100 steps.
"""
STRUCK_SHARE = 0.5
"""Share of the steps over which kills are spread. The rest is room: steps continue while kills wait for a recovery."""


class Kind(enum.StrEnum):
    """Kinds of processes that can be killed. MACHINE is every process of the run at once."""

    NATS = "nats"
    ENGINE = "engine"
    SCHEDULER = "scheduler"
    CONDUCTOR = "conductor"
    INBOX = "inbox"
    GRADER = "grader"
    GRADER_CHILD = "grader_child"
    TRAINER = "trainer"
    RANK = "rank"
    ARCHIVIST = "archivist"
    DRIVER = "driver"
    MACHINE = "machine"
    RAYLET = "raylet"
    SERVE_CONTROLLER = "serve_controller"
    GATEWAY = "gateway"


ASKED_FOR = (Kind.RANK, Kind.RAYLET, Kind.SERVE_CONTROLLER, Kind.GATEWAY)
"""Struck only where they are named: not every run has further ranks or a gateway, and the others are Ray's own."""
USUAL = tuple(kind for kind in Kind if kind not in ASKED_FOR)


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill: `delay_s` after weight version `after_version` is there and, if `waits`, the last kill is got over.

    after_version -1: as soon as the run has said that it was started, while everything else is being started. in_turn:
    `delay_s` after an agent asked, while one waits for an answer.
    """

    number: int
    kind: Kind
    after_version: int
    delay_s: float
    waits: bool
    in_turn: bool = False


def steps_for(kills: int, max_staleness: int = 0) -> int:
    """Return the steps of a run that is long enough for `kills` kills."""
    return max(4, (STEPS_PER_KILL_AHEAD if max_staleness else STEPS_PER_KILL) * kills)


def schedule(
    kills: int, seed: int, steps: int, kinds: Sequence[Kind] = USUAL, *, in_turn: bool = False
) -> tuple[Strike, ...]:
    """`kills` strikes spread over the first half of a run of `steps` steps. Every kind comes about as often."""
    drawn = random.Random(seed)
    order: list[Kind] = []
    while len(order) < kills:
        order += drawn.sample(list(kinds), len(kinds))
    moments = max(1, int(steps * STRUCK_SHARE))
    return tuple(
        Strike(
            number=number,
            kind=order[number],
            after_version=number * moments // kills - 1,
            delay_s=drawn.uniform(0.0, LONGEST_IN_TURN_S if in_turn else LONGEST_DELAY_S),
            waits=number == 0 or drawn.random() >= OVERLAPPING,
            in_turn=in_turn,
        )
        for number in range(kills)
    )
