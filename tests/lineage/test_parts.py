"""The parts of an answer, each by itself: what of it is counted, named, and left out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested, WeightSpan
from schemas.trainers import Fidelity, TrainerRestored
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery, Mask, Reward, Sample
from slime_events.analysis.lineage.resolve import SourceLine, lineage, to_json
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.ancestry import JoinedRun, VersionRange
from tests import made
from tests.cli.small_run import BATCHES, GROUPS, REJECTED, RUN, events
from tests.lineage.long import Counting, long_run
from tests.lineage.opened import opened, with_algorithm
from tests.lineage.pictures import group, samples, step


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a.jsonl", SourceLine("a.jsonl", None)),
        ("a.jsonl:3", SourceLine("a.jsonl", "3")),
        ("a.jsonl:b", SourceLine("a.jsonl:b", None)),
        ("inbox:b", SourceLine("inbox", "b")),
        ("s3://x/a.jsonl", SourceLine("s3://x/a.jsonl", None)),
        (":3", SourceLine("", "3")),
        ("3", SourceLine("3", None)),
    ],
)
def test_a_source_is_a_file_a_line_of_it_or_a_key(text: str, line: SourceLine) -> None:
    assert SourceLine.of(text) == line


FILE, SENT = Source(path="/data/train/a.jsonl", line=3), Source(path="inbox", key="k", line=0)


@pytest.mark.parametrize(
    ("line", "source", "matches"),
    [
        (SourceLine("/data/train/a.jsonl"), FILE, True),
        (SourceLine("a.jsonl"), FILE, True),
        (SourceLine("train/a.jsonl", "3"), FILE, True),
        (SourceLine("train/a.jsonl", "4"), FILE, False),
        (SourceLine("in/a.jsonl"), FILE, False),
        (SourceLine("data"), FILE, False),
        (SourceLine("inbox", "k"), SENT, True),
        (SourceLine("inbox", "0"), SENT, False),
        (SourceLine("inbox"), SENT, True),
        (SourceLine("s3://x//a.jsonl"), Source(path="s3://x//a.jsonl"), True),
    ],
)
def test_it_is_the_whole_path_or_its_end(line: SourceLine, source: Source, matches: bool) -> None:
    assert line.matches(source) is matches


@pytest.mark.parametrize(
    ("mask", "trained", "ranges"),
    [([], 0, ()), ([0, 0], 0, ()), ([1, 1], 2, ((0, 2),)), ([0, 1, 1, 0, 1], 3, ((1, 3), (4, 5)))],
)
def test_a_mask_is_told_by_its_ranges(mask: list[int], trained: int, ranges: tuple[tuple[int, int], ...]) -> None:
    assert Mask.of(np.array(mask, np.int8)) == Mask(tokens=len(mask), trained=trained, ranges=ranges)


@pytest.mark.parametrize(
    ("source", "file_line"),
    [
        (Source(path="s3://x/a.jsonl", line=3), "a.jsonl:3"),
        (Source(path="inbox", key="k", sender="team"), "inbox:k of team"),
        (Source(path="inbox"), "inbox"),
        (Source(path="/"), "/"),
    ],
)
def test_a_group_names_its_file_and_line(source: Source, file_line: str) -> None:
    assert replace(group("g", []), source=source).file_line == file_line


def test_a_step_s_mean_is_over_its_rewards() -> None:
    assert [step(0, [], rewards).mean_reward for rewards in ([], [1.0], [1.0, 0.0, 0.5])] == [0.0, 1.0, 0.5]


def test_a_reward_is_a_value_or_why_there_is_none() -> None:
    by: dict[str, Any] = {"sample": "s", "group": "g", "grader": "exact", "grader_digest": "d"}
    assert Reward.of(RewardAssigned(**by, value=0.5)) == Reward(grader="exact", grader_digest="d", value=0.5)
    failed = Reward.of(RewardFailed(**by, kind=RewardFailureKind.TIMEOUT, message="late"))
    assert failed == Reward(grader="exact", grader_digest="d", failure="timeout: late")


def answer(*parts: Sample, runs: tuple[JoinedRun, ...] = ()) -> Lineage:
    return Lineage(run="own", asked=LineageQuery(kind=Kind.GROUP, value="g"), newest=9, runs=runs, samples=parts)


def test_what_comes_of_samples_is_what_comes_of_the_one_that_was_trained_first() -> None:
    late, early = (VersionRange(run="own", first=first, last=9) for first in (8, 3))
    first, second, third = samples("g", [1.0, 1.0, 1.0])
    assert answer().samples_descendants == ()
    joined = answer(first, replace(second, descendants=(late,)), replace(third, descendants=(early, late)))
    assert joined.samples_descendants == (early, late)


def test_a_version_after_the_join_is_not_on_the_line() -> None:
    runs = (
        JoinedRun(run="first", where="a"),
        JoinedRun(run="own", where="b", parent="first", version=4),
        JoinedRun(run="odd", where="c", parent="first"),
    )
    lineage = answer(runs=runs)
    assert [lineage.on_line("first", version) for version in (3, 4, 5)] == [True, True, False]
    assert lineage.on_line("own", 99)


async def _of(run: OpenedRun, kind: Kind, value: object, depth: int = 1) -> Lineage:
    return await lineage(run, LineageQuery(kind=kind, value=str(value), depth=depth))


async def test_versions_know_the_newest_approximation_before_them() -> None:
    def restored(version: int, optimizer: Fidelity, trainer: str = "t") -> Event:
        return TrainerRestored(version=version, trainer=trainer, checkpoint=0, optimizer=optimizer)

    run = await long_run(5)
    events_ = [record.envelope.event for record in run.log.records]  # type: ignore[attr-defined]
    events_ += [restored(1, Fidelity.APPROXIMATE), restored(3, Fidelity.APPROXIMATE), restored(4, Fidelity.EXACT)]
    lineage = await _of(await opened(events_, "long"), Kind.VERSION, 5, depth=0)
    assert {version.version: version.approximate_since for version in lineage.versions} == {
        0: None, 1: None, 2: 1, 3: 1, 4: 3, 5: 3
    }  # fmt: skip


@pytest.mark.parametrize(("depth", "count"), [(1, 1), (2, 2), (4, 4), (9, 4), (0, 4)])
async def test_it_goes_so_many_steps_back(depth: int, count: int) -> None:
    run, steps = await long_run(5), [3, 2, 1, 0][:count]
    of_version, of_step = await _of(run, Kind.VERSION, 4, depth), await _of(run, Kind.STEP, 3, depth)
    assert [each.step for each in of_version.steps] == [each.step for each in of_step.steps] == steps
    assert [version.version for version in of_version.versions] == [4, *steps]
    assert (of_version.ancestors, of_version.descendants) == (
        (VersionRange(run="long", first=0, last=3),), (VersionRange(run="long", first=5, last=5),)
    )  # fmt: skip
    assert of_step.versions == of_version.versions


async def test_a_beginning_comes_of_nothing() -> None:
    lineage = await _of(await long_run(2), Kind.VERSION, 0)
    assert (lineage.steps, lineage.samples, lineage.ancestors) == ((), (), ())
    assert lineage.descendants == (VersionRange(run="long", first=1, last=2),)


def under_way() -> list[Event]:
    """Two chunks of a first attempt, then a second one of which nothing is known but a turn's chunk."""
    events_ = list(events())
    first = next(place for place, event in enumerate(events_) if isinstance(event, RolloutProgressed))
    chunk = events_[first]
    assert isinstance(chunk, RolloutProgressed)
    later = replace(chunk, start=2, tokens=chunk.tokens, spans=(WeightSpan(2, 4, 1),))
    of_turn = replace(chunk, start=0, turn=0, spans=(WeightSpan(0, 2, 9),))
    request = next(e for e in events_ if isinstance(e, RolloutRequested) and e.sample == chunk.sample)
    return [*events_[: first + 1], later, of_turn, replace(request, attempt=1, min_version=1, seed=8)]


async def test_a_sample_that_is_asked_for_again_is_told_by_its_last_request() -> None:
    (sample,) = (await _of(await opened(under_way()), Kind.SAMPLE, "inbox-aa-s1")).samples
    assert (sample.attempts, sample.asked_version, sample.seed) == (2, 1, 8)
    assert (sample.spans, sample.made_by, sample.length) == ((WeightSpan(0, 2, 0), WeightSpan(2, 4, 1)), (0, 1), 4)
    assert (sample.reward, sample.mask, sample.step, sample.trained_into, sample.prompt) == (
        None,
        None,
        None,
        None,
        None,
    )


async def test_a_prompt_of_its_own_is_told() -> None:
    events_ = [
        replace(event, prompt=event.tokens, prompt_text="mine")
        if isinstance(event, RolloutCompleted) and event.sample == "inbox-aa-s1"
        else event
        for event in events()
    ]
    samples = (await _of(await opened(events_), Kind.GROUP, "inbox-aa")).samples
    assert [sample.prompt for sample in samples] == [None, "mine"]


async def test_a_group_without_a_verdict_has_the_samples_that_it_may_have() -> None:
    events_ = [event for event in events() if not isinstance(event, GroupAccepted) or event.group != "inbox-aa"]
    run = await opened([event for event in events_ if getattr(event, "step", None) != 1])
    settings = replace(run.settings, rollout=replace(run.settings.rollout, n_samples_per_prompt=2))
    lineage = await _of(made.opened(run.log, settings), Kind.GROUP, "inbox-aa")
    assert [sample.sample for sample in lineage.samples] == ["inbox-aa-s0", "inbox-aa-s1"]
    assert (lineage.groups[0].decision, lineage.groups[0].step, len(lineage.notes)) == (None, None, 1)


@pytest.mark.parametrize(("each", "count"), [(3, 2), (1, 1)])
async def test_an_evaluation_s_group_has_as_many_as_its_settings_say(each: int, count: int) -> None:
    events_ = [
        replace(event, purpose=Purpose.EVAL, dataset="held") if isinstance(event, PromptSubmitted) else event
        for event in events()
        if not isinstance(event, GroupAccepted) and getattr(event, "step", None) is None
    ]
    run = await opened(events_)
    settings = replace(run.settings, evaluation=replace(run.settings.evaluation, n_samples_per_eval_prompt=each))
    lineage = await _of(made.opened(run.log, settings), Kind.GROUP, GROUPS[0])
    assert len(lineage.samples) == count, "the log has two"


async def test_a_sample_is_told_without_reading_the_others() -> None:
    run = await opened(list(events()))
    counting = Asks(run.log)
    await _of(made.opened(counting, run.settings), Kind.SAMPLE, f"{BATCHES[0][0]}-s0")
    assert not [subject for subject in counting.questions if f"{BATCHES[0][0]}-s1" in subject]
    white = with_algorithm(made.opened(counting, run.settings), normalize_advantages=True)
    await _of(white, Kind.SAMPLE, f"{BATCHES[0][0]}-s0")
    assert [subject for subject in counting.questions if f"{BATCHES[0][0]}-s1" in subject], (
        "whitening is over the batch"
    )


class Asks(Counting):
    """Notes what it is asked for."""

    def __init__(self, log: Any) -> None:
        super().__init__(log)
        self.questions: list[str] = []

    async def last_of_each(self, subjects: Any) -> Any:
        self.questions += subjects
        return await super().last_of_each(subjects)


async def test_what_was_rejected_is_noted_and_its_json_reads_back() -> None:
    lineage = await _of(await opened(list(events())), Kind.SOURCE, "train.jsonl")
    assert [note for note in lineage.notes if note.startswith(REJECTED)]
    assert len(lineage.notes) == 1
    assert msgspec.json.decode(to_json(lineage), type=Lineage) == lineage
    assert [each.step for each in lineage.steps] == [0, 1]
    assert {each.run for each in lineage.groups} == {RUN}
