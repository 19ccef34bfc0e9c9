"""Simulated runs in pairs: the same settings twice, and pairs with one known difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from schemas.groups import GroupRejected
from slime_events.analysis.compare.compare import compare_facts
from slime_events.analysis.compare.comparison import Difference, Kind
from slime_events.analysis.compare.run_facts import RunFacts
from slime_events.loop.conductor.plan import Plan
from slime_events.model import fold_run
from slime_events.plugins.sample import Sample
from tests.conductor.driver import dropping
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool, by_text
from tests.simulation.simulation import Simulation, make_plan

PROMPTS = [f"prompt {number}" for number in range(40)]
CHANGED = 7


async def run(
    folder: Path,
    plan: Plan,
    *,
    grade: Callable[[Sample], float] = by_text,
    prompts: list[str] = PROMPTS,
    dropped: float = 0.3,
    train_s: float = 0.0,
) -> RunFacts:
    """Run a simulation with two engines to its end; return its records. train_s: seconds of a step."""
    folder.mkdir()
    judge, pool = dropping(dropped), InstantPool(grade)
    async with Simulation(folder, plan, judge=judge, prompts=prompts, pool=pool, train_s=train_s) as simulation:
        for _ in range(2):
            simulation.start_engine(Script(chunk=8, seconds_per_chunk=0.002))
        await simulation.finish()
    facts = RunFacts(fold_run("sim", simulation.log.records))
    for recorded in simulation.log.records:
        facts.add(recorded)
    return facts


def first(a: RunFacts, b: RunFacts) -> Difference:
    difference = compare_facts(a, b).first
    assert difference is not None
    return difference


async def test_the_same_settings_twice(tmp_path: Path) -> None:
    plan = make_plan(steps=4)
    comparison = compare_facts(await run(tmp_path / "a", plan), await run(tmp_path / "b", plan))
    assert comparison.first is None
    assert [step.step for step in comparison.steps] == [0, 1, 2, 3]


async def test_a_changed_reward_of_step_7(tmp_path: Path) -> None:
    plan = make_plan(steps=9)
    a = await run(tmp_path / "a", plan, dropped=0)
    group = next(group for group in a.run.groups.values() if group.step == 7)
    assert group.prompt is not None
    prompt = group.prompt.event.text

    def grade(sample: Sample) -> float:
        return 1 - by_text(sample) if str(sample.prompt) == prompt else by_text(sample)

    difference = first(a, await run(tmp_path / "b", plan, grade=grade, dropped=0))
    assert (difference.kind, difference.field, difference.step) == (Kind.REWARD, "value", 7)
    assert difference.sample == f"{group.group}-s0"
    assert isinstance(difference.a, float)
    assert difference.b == 1 - difference.a


async def test_another_seed(tmp_path: Path) -> None:
    a = await run(tmp_path / "a", make_plan(steps=4), dropped=0)
    difference = first(a, await run(tmp_path / "b", make_plan(steps=4, seed=43), dropped=0))
    assert (difference.kind, difference.step) == (Kind.TOKENS, 0)
    seeds = next((value.a, value.b) for value in difference.inputs if value.name == "seed")
    assert seeds[0] != seeds[1]


async def test_a_changed_prompt(tmp_path: Path) -> None:
    prompts = [*PROMPTS[:CHANGED], "another prompt", *PROMPTS[CHANGED + 1 :]]
    plan = make_plan(steps=6)
    a = await run(tmp_path / "a", plan, dropped=0)
    difference = first(a, await run(tmp_path / "b", plan, prompts=prompts, dropped=0))
    assert (difference.kind, difference.field) == (Kind.PROMPT, "text")
    assert (difference.a, difference.b) == (PROMPTS[CHANGED], "another prompt")
    assert difference.step == a.run.groups[difference.group or ""].step


async def test_another_filter(tmp_path: Path) -> None:
    plan = make_plan(steps=4)
    a = await run(tmp_path / "a", plan, dropped=0.3)
    difference = first(a, await run(tmp_path / "b", plan, dropped=0))
    rejected = next(g for g in a.run.groups.values() if g.verdict and isinstance(g.verdict.event, GroupRejected))
    assert (difference.kind, difference.group) == (Kind.DECISION, rejected.group)
    assert (difference.a, difference.b) == ("rejected (filter)", "accepted")


async def test_another_bound_of_staleness(tmp_path: Path) -> None:
    a = await run(tmp_path / "a", make_plan(steps=4))
    # Rollouts that begin during the first step end before it, and so have the weights before it alone.
    difference = first(a, await run(tmp_path / "b", make_plan(steps=4, max_staleness=1), train_s=0.3))
    assert (difference.kind, difference.step) == (Kind.TOKENS, 1)
    weights = next((value.a, value.b) for value in difference.inputs if value.name == "weights")
    assert weights == ("v1", "v0")
