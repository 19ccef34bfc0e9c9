"""Prompts that are drawn again from their files."""

from __future__ import annotations

from pathlib import Path

from schemas.event import Purpose
from slime_events.analysis.replay.feeds import CachedFeed
from slime_events.analysis.replay.replay import Replay
from slime_events.analysis.replay.report import ReplayReport
from tests.replay.replayed import policy_for
from tests.simulation.roles import make_feed
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_sampled import CURRICULUM, sampled_feed, simulate

ROWS = ["a", {"input": 7}, *[f"p{n}" for n in range(3)]]
PLAN = make_plan(steps=3, groups=1, samples=1, eval_every=2, eval_names=("held",))


async def test_a_changed_line_is_found_where_it_was_drawn(tmp_path: Path) -> None:
    async with Simulation(tmp_path, PLAN, prompts=ROWS, evaluations={"held": ["one", "two"]}) as sim:
        sim.start_engine()
        await sim.finish()

    def drawn_again(rows: list[object], held: list[str]) -> ReplayReport:
        replay = Replay("sim", CachedFeed(make_feed(tmp_path, rows, {"held": held})), policy=policy_for(PLAN))
        for recorded in sim.log.records:
            replay.apply(recorded)
        return replay.report

    same = drawn_again(ROWS, ["one", "two"])
    assert same.is_equal, same.differences[0]
    assert same.decisions["prompt.rejected"] >= 1
    (difference,) = drawn_again([*ROWS[:3], "another", *ROWS[4:]], ["one", "two"]).differences
    assert difference.fields == ("text", "tokens")
    assert difference.decided.text == "another"  # type: ignore[union-attr]
    (difference,) = drawn_again(ROWS, ["one", "three"]).differences
    assert (difference.recorded.text, difference.recorded.purpose) == ("two", Purpose.EVAL)  # type: ignore[attr-defined]


async def test_a_curriculum_s_draws_are_made_again(tmp_path: Path) -> None:
    """Draw by the position of each draw, also what is not drawn."""
    sim = await simulate(tmp_path, sampled_feed(tmp_path, CURRICULUM), steps=6)

    def drawn_again(rows: int) -> ReplayReport:
        feed = CachedFeed(sampled_feed(tmp_path, CURRICULUM, rows=rows), follows_log=True)
        replay = Replay("sim", feed, policy=policy_for(sim.plan))
        for recorded in sim.log.records:
            replay.apply(recorded)
        return replay.report

    same = drawn_again(12)
    assert same.is_equal, same.differences[0]
    assert same.decisions["prompt.submitted"] >= 12
    assert not drawn_again(5).is_equal
