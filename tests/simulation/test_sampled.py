"""Prompts by pass rate, and out of another run's log: none skipped or repeated, and every draw can be made again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import DataError, PlugPointError
from schemas.groups import GroupAccepted
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.runs import Branched, RunStarted
from schemas.steps import StepCommitted
from slime_events.core.config.data import DataSettings
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.prompt_sampler import make_prompt_sampler
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.conductor.user_data_source import UserDataSource
from slime_events.loop.prompts.archived_prompts import ArchivedPrompts, read_members, read_rows
from slime_events.loop.prompts.buffer_filter import BufferFilter
from slime_events.loop.prompts.source import PromptSource
from slime_events.model.branch_point import read_point, with_draws
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.sample import Sample
from storage.memory_log import MemoryLog
from tests import made
from tests.replay.replayed import policy_for, replayed
from tests.scripted_engine import Script
from tests.simulation.crash import Scene, Scope
from tests.simulation.parts import InstantPool, Letters, ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_crash import at_every_append, events_of, invariants
from tests.simulation.test_run import check_run

CURRICULUM = DataSettings(prompt_sampler="curriculum", prompt_rest=1, curriculum_new=0.4)
ALL_NEW = DataSettings(prompt_sampler="curriculum", curriculum_new=1.0)
SEED = 5


def by_number(sample: Sample) -> float:
    """Prompts 0, 3, 6, ... are never solved, 1, 4, 7, ... by every other sample, 2, 5, 8, ... always."""
    kind = int(str(sample.prompt).rpartition(" ")[2]) % 3
    return float(kind == 2 or (kind == 1 and (sample.index or 0) % 2 == 0))


def sampled_feed(
    folder: Path, data: DataSettings, archive: ArchivedPrompts | None = None, *, rows: int = 12, longest: int = 200
) -> PromptFeed:
    """Build a feed of a file of `rows` prompts; without any, of the archive alone."""
    source = None
    if rows:
        file = folder / "train.jsonl"
        file.write_text("".join(f'{{"input": "prompt {n}", "label": "1"}}\n' for n in range(rows)))
        source = PromptSource(DataSettings(prompt_data=str(file), label_key="label"), SEED, Letters(), longest)
    sampled = make_prompt_sampler(data, SEED, source, archive, Letters(), longest)
    assert sampled is not None
    return PromptFeed(source, {}, data, Letters(), sampled)


async def simulate(folder: Path, feed: PromptFeed, **plan: Any) -> Simulation:
    folder.mkdir(exist_ok=True)
    run = make_plan(**({"steps": 12} | plan))
    async with Simulation(folder, run, feed=feed, pool=InstantPool(by_number)) as sim:
        sim.start_engine(Script(chunk=24))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert not replayed(sim.log.records, policy_for(sim.plan)).differences
    return sim


def check_draws(log: MemoryLog, again: PromptFeed, cursors: dict[str, int] | None = None) -> list[PromptSubmitted]:
    """Every draw, made again by a feed that has heard the log up to where the draw's maker had. cursors: a branch's."""
    drawn = [event for event in events_of(log, PromptSubmitted) if event.source.seen]
    cursors = dict(cursors or {})
    heard = 0
    for event in drawn:
        for recorded in log.records[heard : event.source.seen]:
            again.observe(recorded)
        heard = event.source.seen
        batch = [prompt for prompt in drawn if prompt.source.seen == heard]
        if event is batch[0]:
            assert again.take(cursors, len(batch)) == batch
        cursors[event.source.path] = event.source.offset + 1
    return drawn


async def test_a_curriculum(tmp_path: Path) -> None:
    sim = await simulate(tmp_path, sampled_feed(tmp_path, CURRICULUM, rows=24), steps=20, samples=6)
    drawn = check_draws(sim.log, sampled_feed(tmp_path, CURRICULUM, rows=24))
    assert [event.source.offset for event in drawn] == list(range(len(drawn)))
    assert len({event.group for event in drawn}) == len(drawn) >= 40
    times = Counter[int]()
    for event in drawn:
        assert event.source.epoch == times[event.source.row]
        times[event.source.row] += 1
    firsts = [event.source.row for event in drawn if event.source.epoch == 0]
    assert firsts == sorted(firsts), "new prompts come in the file's order"


@pytest.mark.parametrize("order", [CURRICULUM, DataSettings()], ids=["by pass rate", "in the file's order"])
async def test_a_branch_draws_by_what_its_parent_knew(tmp_path: Path, order: DataSettings) -> None:
    feed = sampled_feed(tmp_path, CURRICULUM, rows=24)
    source = PromptSource(DataSettings(prompt_data=str(tmp_path / "train.jsonl")), SEED, Letters(), 200)
    in_order = PromptFeed(source, {}, order, Letters())
    parent = await simulate(tmp_path, feed if order is CURRICULUM else in_order, steps=8)
    point = await with_draws(await read_point(parent.log, 5, "parent"), parent.log, CURRICULUM)
    done = {group for batch in parent.events(BatchSealed) if batch.step < 5 for group in batch.groups}
    rows = Counter(event.source.row for event in parent.events(PromptSubmitted) if event.group in done)
    (stats,) = point.draws or ()
    assert dict(zip(unpack(stats.rows).tolist(), unpack(stats.times).tolist(), strict=True)) == rows
    digests = {event.version: bytes.fromhex(event.optimizer_digest) for event in parent.events(StepCommitted)}
    folder = tmp_path / "branch"
    folder.mkdir()
    ranks = ScriptedRanks(disk={f"{folder}/checkpoints/v000005": digests[5]})
    started = RunStarted(settings={}, code_version="", branched=point)
    feed = sampled_feed(tmp_path, CURRICULUM, rows=24)
    async with Simulation(
        folder, parent.plan, feed=feed, pool=InstantPool(by_number), ranks=ranks, started=started
    ) as sim:
        sim.start_engine(Script(chunk=24))
        assert await sim.finish() is RunPhase.FINISHED
    drawn = check_draws(sim.log, sampled_feed(tmp_path, CURRICULUM, rows=24), point.cursors)
    for event in drawn:
        assert event.source.epoch == rows[event.source.row]
        rows[event.source.row] += 1
    assert [event.source.row for event in drawn if event.source.epoch], "some that its parent drew come again"
    assert isinstance(sim.fold().branched, Branched)
    assert not replayed(sim.log.records, policy_for(sim.plan)).differences


@pytest.mark.parametrize("draw", [None, 4])
async def test_a_curriculum_ahead_of_the_trainer(tmp_path: Path, draw: int | None) -> None:
    feed = sampled_feed(tmp_path, CURRICULUM, rows=3)
    sim = await simulate(tmp_path, feed, steps=6, max_staleness=2, in_prompt_order=False, draw=draw)
    check_draws(sim.log, sampled_feed(tmp_path, CURRICULUM, rows=3))


async def test_another_conductor_calls_the_same_draw_by_the_same_name(tmp_path: Path) -> None:
    """One has heard that the first row is drawn and open, the other has not."""
    sim = await simulate(tmp_path, sampled_feed(tmp_path, CURRICULUM), steps=1)
    early, late = sampled_feed(tmp_path, CURRICULUM), sampled_feed(tmp_path, CURRICULUM)
    (first, *_) = [recorded for recorded in sim.log.records if isinstance(recorded.envelope.event, PromptSubmitted)]
    for recorded in sim.log.records[: first.position]:
        late.observe(recorded)
    source = first.envelope.event.source
    early_row, other = early.take({source.path: 5}, 1)[0], late.take({source.path: 5}, 1)[0]
    assert early_row.source.row == source.row != other.source.row
    assert early_row.entity() == other.entity() == "draw-000005"


async def test_the_conductor_dies_at_each_of_its_appends(tmp_path: Path) -> None:
    """Let the successor draw with the next number, by the log of that moment."""
    plan = make_plan(steps=2, groups=1, samples=2)
    scene = Scene(plan=plan, feed=lambda _: sampled_feed(tmp_path, CURRICULUM, rows=5))

    def judge(log: MemoryLog) -> dict[str, Any]:
        drawn = check_draws(log, sampled_feed(tmp_path, CURRICULUM, rows=5))
        assert [event.source.offset for event in drawn] == list(range(len(drawn)))
        return invariants(log)

    assert await at_every_append(scene, tmp_path, judge, scope=Scope.ROLE, role="conductor") > 4


async def recorded_rows(sim: Simulation, **data: Any) -> ArchivedPrompts:
    """The prompts of a simulated run, as those of an archive."""
    opened = made.opened(sim.log, where="archive/first")
    rows = await read_rows(opened, 1.0)
    await read_members(opened, dict(enumerate(rows)))
    low, high = data.get("low", 0.0), data.get("high", 1.0)
    eligible = [n for n, row in enumerate(rows) if row.pass_rate is not None and low <= row.pass_rate <= high]
    return ArchivedPrompts("archive/first", await sim.log.position(), rows, eligible)


async def test_prompts_of_an_archive_beside_new_ones(tmp_path: Path) -> None:
    first = await simulate(tmp_path / "a", sampled_feed(tmp_path, CURRICULUM), steps=8)
    archive = await recorded_rows(first, low=0.2, high=0.8)
    assert {int(archive.rows[row].prompt.text.split()[1]) % 3 for row in archive.eligible} == {1}
    data = DataSettings(archive_prompts="archive/first", archive_share=0.5, prompt_rest=1)
    (tmp_path / "b").mkdir()
    sim = await simulate(tmp_path / "b", sampled_feed(tmp_path / "b", data, archive, rows=30), steps=10)
    drawn = check_draws(sim.log, sampled_feed(tmp_path / "b", data, archive, rows=30))
    again = [event for event in drawn if event.source.key]
    assert 0.25 < len(again) / len(drawn) < 0.75
    assert [event.source.row for event in drawn if not event.source.key] == list(range(len(drawn) - len(again)))
    for event in again:
        row = archive.rows[event.source.row]
        assert event.source.row in archive.eligible
        assert (event.text, event.label, event.source.key) == (row.prompt.text, row.prompt.label, row.groups[-1])
    assert {event.group for event in again} & {event.group for event in sim.events(GroupAccepted)}


async def test_an_archive_alone_and_a_prompt_that_is_too_long_here(tmp_path: Path) -> None:
    first = await simulate(tmp_path / "a", sampled_feed(tmp_path, ALL_NEW), steps=8)
    archive = await recorded_rows(first)
    data = DataSettings(archive_prompts="archive/first")
    sim = await simulate(tmp_path / "b", sampled_feed(tmp_path, data, archive, rows=0, longest=8), steps=10)
    check = {int(event.text.split()[1]) for event in sim.events(PromptSubmitted)}
    assert max(check) < 10, "those above have nine letters"
    refused = sim.events(PromptRejected)
    assert {event.source.row for event in refused} <= {
        n for n, row in enumerate(archive.rows) if len(row.prompt.text) > 8
    }
    assert refused
    assert len({event.source.row for event in refused}) == len(refused), "each once"


def test_what_is_never_usable_is_an_error(tmp_path: Path) -> None:
    feed = sampled_feed(tmp_path, CURRICULUM, rows=2, longest=3)
    with pytest.raises(DataError, match="no usable prompt is left"):
        feed.take({}, 1)


NEWEST_FIRST = """
def choose(args, rollout_id, buffer, num_samples):
    assert rollout_id is None and args.n_samples_per_prompt == 3
    kept = [group for group in buffer if any(sample.reward for sample in group)]
    return kept[-num_samples:]


def broken(args, rollout_id, buffer, num_samples):
    return buffer
"""


async def test_slimes_buffer_filter_chooses_of_the_archive(tmp_path: Path) -> None:
    first = await simulate(tmp_path / "a", sampled_feed(tmp_path, ALL_NEW), steps=6)
    archive = await recorded_rows(first)
    (tmp_path / "newest.py").write_text(NEWEST_FIRST)
    args = ArgsView({"n_samples_per_prompt": 3})
    data = DataSettings(archive_prompts="archive/first")
    own = [BufferFilter(f"{tmp_path}/newest.py:{name}", args) for name in ("choose", "broken")]
    draw = make_prompt_sampler(data, SEED, None, archive, Letters(), None, own[0])
    assert draw is not None
    passed = [row for row, each in enumerate(archive.rows) if each.passed]
    assert [event.source.row for event in draw.take({}, 4)] == passed[:-5:-1]
    broken = make_prompt_sampler(data, SEED, None, archive, Letters(), None, own[1])
    assert broken is not None
    with pytest.raises(PlugPointError, match="must return a list with a single group"):
        broken.take({}, 1)


SQUARES = """
from slime.rollout.data_source import DataSource
from slime.utils.types import Sample


class Squares(DataSource):
    def __init__(self, args):
        self.args, self.given = args, 0

    def get_samples(self, num_samples):
        groups = []
        for _ in range(min(num_samples, 30 - self.given)):
            n = self.given
            sample = Sample(prompt=f"square {n}", label=str(n * n))
            groups.append([sample] * self.args.n_samples_per_prompt)
            self.given += 1
        return groups
"""


async def test_slimes_data_source_gives_the_prompts(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(SQUARES)
    data = DataSettings(data_source_path=f"{tmp_path}/squares.py:Squares")

    def feed() -> PromptFeed:
        source = UserDataSource(data, ArgsView({"n_samples_per_prompt": 3}), Letters(), 200)
        return PromptFeed(None, {}, data, Letters(), source)

    sim = await simulate(tmp_path, feed(), steps=6)
    drawn = check_draws(sim.log, feed())
    assert [(event.text, event.label) for event in drawn] == [(f"square {n}", str(n * n)) for n in range(len(drawn))]
    path = data.data_source_path or ""
    assert [event.source.offset for event in feed().take({path: 27}, 9)] == [27, 28, 29], "after a restart, to its end"
