"""`compare_facts` finds the first difference of two runs; `compare` reads both runs for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from schemas.errors import BlobMissing
from slime_events.analysis.compare.comparison import (
    BatchFigures,
    Comparison,
    Difference,
    Distribution,
    Kind,
    StepComparison,
)
from slime_events.analysis.compare.differences import RunPair, start_difference, step_differences
from slime_events.analysis.compare.run_facts import RunFacts, read_facts
from slime_events.analysis.compare.token_places import place_of_difference
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.tokens.trajectory import read_trajectory


def compare_facts(a: RunFacts, b: RunFacts) -> Comparison:
    """Compare two runs, step by step from the first that both train.

    After the last batch that both have, groups of the step that follows are compared as far as both have them.
    Evaluations are not compared: no weights depend on them.
    """
    pair, steps = RunPair(a, b), list[StepComparison]()
    first_step = max(a.first_step, b.first_step)
    last_step = min(max(a.run.steps, default=first_step - 1), max(b.run.steps, default=first_step - 1))
    first, groups = start_difference(pair, first_step), _groups_by_step(pair)
    for step in range(first_step, last_step + 2):
        counts = Counter[Kind]()
        for difference in step_differences(pair, step, groups.get(step, ())):
            first = first or difference
            counts[difference.kind] += 1
        if step in a.run.steps and step in b.run.steps:
            differences = {kind: counts[kind] for kind in Kind if counts[kind]}
            figures = [_figures(facts, step) for facts in (a, b)]
            steps.append(StepComparison(step=step, differences=differences, a=figures[0], b=figures[1]))
    return Comparison(a=a.described, b=b.described, settings=pair.settings(), first=first, steps=tuple(steps))


async def compare(a: OpenedRun, b: OpenedRun) -> Comparison:
    """Compare two opened runs. Raises StorageError, LogDamaged, ArchiveDamaged, SchemaError."""
    comparison = compare_facts(await read_facts(a), await read_facts(b))
    first = comparison.first
    if first is None or first.field != "digest" or first.kind is not Kind.TOKENS or first.sample is None:
        return comparison
    return replace(comparison, first=await _placed(first, first.sample, a, b))


async def _placed(difference: Difference, sample: str, a: OpenedRun, b: OpenedRun) -> Difference:
    """Return a difference of two rollouts with the first token or log-prob in which they differ.

    Without the tokens, which may be removed from the blob store, it stays one of digests.
    """
    try:
        of_a, of_b = [await read_trajectory(opened.log, sample, opened.fetch) for opened in (a, b)]
    except BlobMissing:
        return difference
    return place_of_difference(difference, of_a, of_b)


def _groups_by_step(pair: RunPair) -> dict[int, list[str]]:
    """Return the training groups of each step, in the order of their requests in run A, then in run B.

    A group that the runs have in different steps belongs to the later one: the batch of the earlier step differs first,
    and other weights may have generated the group because of that.
    """
    stages, orders = pair.a.stages(), dict[str, tuple[int, str]]()
    for name, step in pair.b.stages().items():
        stages[name] = max(step, stages.get(name, step))
    for name in stages:
        records = [record for facts in (pair.a, pair.b) if (record := facts.group(name)) is not None]
        orders[name] = (min((r.order for r in records if r.order >= 0), default=len(stages)), name)
    groups: dict[int, list[str]] = {}
    for name in sorted(stages, key=orders.__getitem__):
        groups.setdefault(stages[name], []).append(name)
    return groups


def _figures(facts: RunFacts, step: int) -> BatchFigures:
    batch = facts.run.steps[step].sealed.event
    lengths = [record.length for name in batch.samples if (record := facts.sample(name)) is not None]
    return BatchFigures(
        samples=len(batch.samples), rewards=_distribution(batch.raw_rewards), lengths=_distribution(lengths)
    )


def _distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    numbers = np.asarray(values, np.float64)
    p10, p50, p90 = map(float, np.percentile(numbers, (10, 50, 90)))
    return Distribution(mean=float(numbers.mean()), std=float(numbers.std()), p10=p10, p50=p50, p90=p90)
