"""`replay`: the decisions of an opened run, made again."""

from __future__ import annotations

from slime_events.analysis.replay.decider import Changes
from slime_events.analysis.replay.feeds import make_feed
from slime_events.analysis.replay.replay import Replay
from slime_events.analysis.replay.report import ReplayReport
from slime_events.core.run.run_reader import OpenedRun


async def replay(
    opened: OpenedRun, changes: Changes | None = None, *, every: bool = False, recorded_prompts: bool = False
) -> ReplayReport:
    """Compare every decision with the recorded one, to the first difference or (every) to the end.

    changes: settings to decide by in place of the run's own. Raises LogDamaged, InvalidValue, PlugPointError.
    """
    feed, prompts = await make_feed(opened.log, opened.settings, recorded=recorded_prompts)
    replaying = Replay(opened.run, feed, changes, every=every)
    replaying.report.prompts = prompts
    async for recorded in opened.log.read():
        replaying.apply(recorded)
        if replaying.is_over:
            break
    return replaying.report
