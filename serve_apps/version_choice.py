"""`choose_version`: which weights an engine runs next, where its rollouts want different ones. Pure.

A training rollout accepts the version that it was asked for and every newer one. One of an evaluation accepts the
version that it is of and no other. The engine runs one version at a time, so one of them may have to wait:

    newer weights are published -> an evaluation that is under way here keeps the engine for `hold_s` seconds at most,
                                   counted from when training waits for the newer ones; then it is paused
    an evaluation is paused     -> it goes on while nothing else is to be made here, or after `PATIENCE` x `hold_s`
                                   seconds, again for `hold_s` seconds at most once training waits
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

PATIENCE = 10
"""So training waits for evaluations for a tenth of its time at most, however long their answers are."""


@dataclass(eq=False, slots=True)
class Claim:
    """One rollout's. It is made by weight versions from `oldest` to `newest`; None: by any newer one.

    waiting_since: seconds of a monotonic clock since when the engine runs none of them; None while it runs one.
    """

    oldest: int
    newest: int | None = None
    waiting_since: float | None = None

    def accepts(self, version: int) -> bool:
        """Whether this version may make it."""
        return self.oldest <= version and (self.newest is None or version <= self.newest)


class Choice(NamedTuple):
    """version: what to run. look_again_s: seconds until another choice is due though nothing else changed."""

    version: int
    look_again_s: float | None = None


def choose_version(
    current: int, published: int, claims: Collection[Claim], *, now: float, since: float, hold_s: float
) -> Choice:
    """The version to run: `current`, the newest `published`, or that of an evaluation which waits for it.

    claims: of the rollouts that this engine has taken. since: when it began to run `current`. now, since: seconds of
    one monotonic clock. hold_s: how long an evaluation may keep training from newer weights.
    """
    evaluations = [claim for claim in claims if claim.newest is not None]
    is_evaluating = any(claim.accepts(current) for claim in evaluations)
    if current != published:
        if not is_evaluating:
            return Choice(published)
        waiting = [c.waiting_since for c in claims if c.newest is None and c.waiting_since is not None]
        if not waiting:
            return Choice(current)
        left = hold_s - (now - max(since, min(waiting)))
        return Choice(published) if left <= 0 else Choice(current, left)
    paused = [claim for claim in evaluations if claim.newest is not None and claim.newest < current]
    if not paused:
        return Choice(current)
    eldest = min(paused, key=lambda claim: now if claim.waiting_since is None else claim.waiting_since)
    left = PATIENCE * hold_s - (now - (now if eldest.waiting_since is None else eldest.waiting_since))
    is_idle = len(paused) == len(claims)
    return Choice(eldest.oldest) if is_idle or left <= 0 else Choice(current, left)
