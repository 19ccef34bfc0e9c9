"""`replayed`: the report on a log in memory."""

from __future__ import annotations

from collections.abc import Sequence

from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.replay.feeds import RecordedFeed
from slime_events.analysis.replay.replay import Changes, Replay
from slime_events.analysis.replay.report import ReplayReport
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.seal import Normalise
from slime_events.plugins.texts import Texts
from storage.log import Recorded
from tests.simulation.roles import keep_all


def normalise(rewards: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Normalise like the conductors of simulations."""
    return normalize_rewards(rewards, sizes, AlgorithmSettings())


def policy_for(
    plan: Plan,
    judge: GroupFilter | None = None,
    normalised: Normalise = normalise,
    texts: Texts | None = None,
) -> Policy:
    """Return the policy of such a conductor."""
    return Policy(plan, judge or keep_all, normalised, texts)


def replayed(
    records: Sequence[Recorded],
    by: Policy | None = None,
    changes: Changes | None = None,
    *,
    every: bool = True,
) -> ReplayReport:
    """by: of a log whose run.started has no settings."""
    feed = RecordedFeed()
    for recorded in records:
        feed.add(recorded.envelope.event)
    replay = Replay("sim", feed, changes, every=every, policy=by)
    for recorded in records:
        replay.apply(recorded)
    return replay.report
