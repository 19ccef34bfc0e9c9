"""Lineage over a small run: what a version was made of, what became of a sample, and that the two agree."""

from __future__ import annotations

import pytest

from schemas.errors import RunNotFound
from schemas.rollouts import RolloutProgressed
from schemas.weights import WeightsPublished
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.resolve import NEWEST, lineage, samples_in_lineage
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model import lookup
from slime_events.model.ancestry import VersionRange
from tests import made
from tests.cli.small_run import BATCHES, GROUPS, REJECTED, RUN, events
from tests.lineage.long import Counting, long_run
from tests.lineage.opened import opened, with_algorithm


@pytest.fixture
async def run() -> OpenedRun:
    return await opened(list(events()))


async def _of(run: OpenedRun, kind: Kind, value: object, depth: int = 1) -> Lineage:
    return await lineage(run, LineageQuery(kind=kind, value=str(value), depth=depth))


async def test_a_version_leads_to_the_lines_of_its_prompts(run: OpenedRun) -> None:
    answer = await _of(run, Kind.VERSION, 2)
    (step,) = answer.steps
    assert (step.step, step.parent, step.version, step.groups) == (1, 1, 2, BATCHES[1])
    assert step.samples == tuple(sample.sample for sample in answer.samples)
    assert (step.mean_reward, step.weights_digest, step.tokens) == (0.5, "d2", 24)
    assert [(group.group, group.source.path, group.source.key) for group in answer.groups] == [
        ("inbox-aa", "inbox", "k1"),
        ("train-0-000003", "train.jsonl", ""),
    ]
    assert answer.groups[1].source.line == 1
    assert answer.ancestors == (VersionRange(run=RUN, first=0, last=1),)
    assert [(version.version, version.step, version.digest) for version in answer.versions] == [
        (2, 1, "d2"),
        (1, 0, "d1"),
    ]


async def test_a_sample_leads_to_every_version_that_it_touched(run: OpenedRun) -> None:
    answer = await _of(run, Kind.SAMPLE, "inbox-aa-s1")
    (sample,) = answer.samples
    assert sample.made_by == (0, 1)
    assert [(span.start, span.end, span.version) for span in sample.spans] == [(0, 2, 0), (2, 3, 1)]
    assert (sample.step, sample.trained_into, sample.descendants) == (1, 2, ())
    assert (sample.reward and sample.reward.value, sample.normalised) == (1.0, 1.0)
    assert sample.advantage is not None
    assert (sample.advantage.first, sample.advantage.last, sample.advantage.left_out) == (1.0, 1.0, ())
    assert sample.mask is not None
    assert (sample.mask.trained, sample.mask.ranges) == (3, ((0, 3),))
    decision = answer.groups[0].decision
    assert decision is not None
    assert (decision.accepted, decision.figures) == (True, {"mean": 0.5})
    early = (await _of(run, Kind.SAMPLE, "train-0-000000-s0")).samples[0]
    assert early.descendants == (VersionRange(run=RUN, first=2, last=2),)


async def test_both_ways_agree(run: OpenedRun) -> None:
    for version in (1, 2):
        forward = await _of(run, Kind.VERSION, version)
        for sample in forward.samples:
            back = (await _of(run, Kind.SAMPLE, sample.sample)).samples
            assert back == (sample,)
            assert sample.trained_into == version
    everything = await _of(run, Kind.VERSION, NEWEST, depth=0)
    assert [step.step for step in everything.steps] == [1, 0]
    assert {sample.sample for sample in everything.samples} == await samples_in_lineage(run, 2)
    first = {f"{group}-s{index}" for group in BATCHES[0] for index in range(2)}
    assert await samples_in_lineage(run, 1) == first
    assert await samples_in_lineage(run, 0) == set()


async def test_what_was_refused_is_in_no_version(run: OpenedRun) -> None:
    answer = await _of(run, Kind.GROUP, REJECTED)
    assert [sample.step for sample in answer.samples] == [None, None]
    assert [sample.advantage for sample in answer.samples] == [None, None]
    decision = answer.groups[0].decision
    assert decision is not None
    assert (decision.accepted, decision.cause, decision.filter) == (False, "filter", "nonzero_std")
    assert answer.notes == (f"{REJECTED}: in no batch of this lineage",)
    assert not {sample for sample in await samples_in_lineage(run, 2) if sample.startswith(REJECTED)}


@pytest.mark.parametrize("source", ["train.jsonl", "train.jsonl:1"])
async def test_a_source_leads_to_its_samples(run: OpenedRun, source: str) -> None:
    answer = await _of(run, Kind.SOURCE, source)
    assert [group.group for group in answer.groups] == [group for group in GROUPS if group != "inbox-aa"]
    assert {sample.trained_into for sample in answer.samples} == {1, 2, None}
    assert [group.group for group in (await _of(run, Kind.SOURCE, "inbox:k1")).groups] == ["inbox-aa"]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Kind.VERSION, 3, "newest is 2"),
        (Kind.VERSION, -1, "newest is 2"),
        (Kind.STEP, 2, "last sealed step is 1"),
        (Kind.SAMPLE, "train-0-000000-s7", "no sample 'train-0-000000-s7'"),
        (Kind.GROUP, "nobody", "no group 'nobody'"),
        (Kind.SOURCE, "train.jsonl:7", r"came from train\.jsonl:7"),
        (Kind.SOURCE, "rain.jsonl", r"came from rain\.jsonl"),
    ],
)
async def test_what_is_not_there_is_said(run: OpenedRun, kind: Kind, value: object, message: str) -> None:
    with pytest.raises(RunNotFound, match=message):
        await _of(run, kind, value)


async def test_a_step_that_is_not_committed_has_made_nothing_yet() -> None:
    run = await opened([event for event in events() if getattr(event, "version", 0) != 2])
    answer = await _of(run, Kind.STEP, 1)
    assert (answer.steps[0].committed_at, answer.newest) == (None, 1)
    assert [sample.trained_into for sample in answer.samples] == [None] * 4


async def test_a_version_that_was_not_published_has_the_digest_of_its_step() -> None:
    log_events = [event for event in events() if not (isinstance(event, WeightsPublished) and event.version == 1)]
    version = (await _of(await opened(log_events), Kind.VERSION, 1)).versions[0]
    assert (version.version, version.digest, version.url, version.published_at) == (1, "d1", None, None)


async def test_a_rollout_that_is_under_way_has_what_its_chunks_say() -> None:
    log_events = list(events())
    first = next(place for place, event in enumerate(log_events) if isinstance(event, RolloutProgressed))
    answer = (await _of(await opened(log_events[: first + 1]), Kind.SAMPLE, "inbox-aa-s1")).samples[0]
    assert (answer.made_by, answer.length, answer.stop, answer.mask, answer.step) == ((0,), 2, None, None, None)


async def test_whitening_is_over_the_whole_batch_whoever_is_asked_for(run: OpenedRun) -> None:
    white = with_algorithm(run, normalize_advantages=True)
    whole = {sample.sample: sample.advantage for sample in (await _of(white, Kind.VERSION, 2)).samples}
    for name, advantage in whole.items():
        assert (await _of(white, Kind.SAMPLE, name)).samples[0].advantage == advantage
    assert {round(advantage.first, 3) for advantage in whole.values() if advantage} == {-0.957, 0.957}


async def test_the_step_of_a_group_is_searched_for_and_not_read_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "AT_ONCE", 2)
    steps = 40
    run = await long_run(steps)
    counting = Counting(run.log)
    run = made.opened(counting, run.settings, run.where)
    for step in (0, 1, 17, steps - 1):
        counting.looks = 0
        (sample,) = (await _of(run, Kind.SAMPLE, f"train-0-{step:06d}-s0")).samples
        assert sample.step == step
        assert counting.looks < 20
