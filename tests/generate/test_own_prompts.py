"""Test a sample's prompt, wherever it is shown: the text of the very tokens before its response."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.arrays import Array, unpack
from schemas.envelope import enclose
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted
from schemas.runs import RunStarted
from slime_events.analysis.export.export import Layout, export, make_writer
from slime_events.analysis.export.sample import ExportedSample, Fate
from slime_events.analysis.lineage.lineage import Kind, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.analysis.query import tables_of
from slime_events.analysis.rescore.collect import Collector, completed_of, prompt_of
from slime_events.analysis.views.sample import view_sample
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.group import GroupState
from slime_events.core.tokens.trajectory import read_trajectory
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.source import PromptSource
from slime_events.loop.training.pending_rewards import PendingRewards
from slime_events.model import read_run
from slime_events.model.records import Group
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import completed_sample, group_samples
from slime_events.plugins.texts import Texts
from storage.log import Append, append_all
from storage.memory_log import MemoryLog
from tests.generate.scene import a_run, check_log, events
from tests.rescore.recorded import settings
from tests.simulation.crash import Crashed
from tests.simulation.parts import Letters
from tests.simulation.roles import keep_all
from tests.simulation.simulation import make_plan

PLAN = make_plan(steps=1, groups=1, samples=2)
FUNCTIONS = ("fan_out", "fan_in")


def chat_feed(folder: Path) -> PromptFeed:
    """Rows of chat messages, under a chat template."""
    rows = [{"input": [{"role": "user", "content": f"what is {n}?"}], "label": str(n)} for n in range(9)]
    (folder / "chats.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    data = DataSettings(prompt_data=f"{folder}/chats.jsonl", label_key="label", apply_chat_template=True)
    return PromptFeed(PromptSource(data, 0, Letters(), 200), {}, data, Letters())


async def crashed_run(folder: Path, function: str, **scene: object) -> Crashed:
    run = a_run(folder, function, PLAN, feed=chat_feed, **scene)
    await run.run()
    check_log(run)
    return run


async def read(log: MemoryLog) -> dict[str, str]:
    """Return by sample its prompt's tokens as text, which is what was trained on."""
    samples = [e.sample for e in (r.envelope.event for r in log.records) if isinstance(e, RolloutCompleted)]
    prompts = {name: (await read_trajectory(log, name, unpack)).prompt for name in samples}
    return {name: letters(prompt) for name, prompt in prompts.items()}


def opened(log: MemoryLog) -> OpenedRun:
    return OpenedRun(log, settings(), unpack, None, "sim")


async def exported(log: MemoryLog, folder: Path) -> list[ExportedSample]:
    await export(opened(log), make_writer(Layout.JSONL, f"{folder}/rows.jsonl"), [Fate.TRAINED])
    lines = (folder / "rows.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=ExportedSample) for line in lines]


def letters(prompt: Array) -> str:
    return "".join(map(chr, unpack(prompt).tolist()))


def graded(log: MemoryLog) -> list[Sample]:
    """Return what a grader sees, each sample when it is due."""
    ungraded, shown = PendingRewards(whole_groups=False), list[Sample]()
    for recorded in log.records:
        ungraded.apply(recorded)
        for group, completed in ungraded.take():
            shown += ungraded.samples(group, completed)
    return shown


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_the_prompt_of_a_sample_is_read_with_its_own_tokens(tmp_path: Path, function: str) -> None:
    run = await crashed_run(tmp_path, function)
    prompts = await read(run.log)
    own = {event.sample for event in events(run, RolloutCompleted) if event.prompt is not None}
    assert len(own) == 2
    for sample, text in prompts.items():
        assert text.startswith("which? " if sample in own else "<user>what is 0?"), sample


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_a_grader_is_shown_the_prompt_that_the_function_left(tmp_path: Path, function: str) -> None:
    """Its own text, as in slime: what the model read instead is in the tokens."""
    run = await crashed_run(tmp_path, function)
    (prompt, *_) = events(run, PromptSubmitted)
    assert [sample.prompt for sample in graded(run.log)] == [prompt.text] * 6


async def test_a_filter_is_shown_what_the_grader_was_shown(tmp_path: Path) -> None:
    shown: dict[str, object] = {}

    def judge(group: GroupState):
        rollouts = [sample if isinstance(sample, list) else [sample] for sample in group_samples(group)]
        prompts = [sample.prompt for rollout in rollouts for sample in rollout]
        shown.update(zip(group.samples, prompts, strict=True))
        return keep_all(group)

    texts = Texts()
    run = await crashed_run(tmp_path, "fan_out", judge=lambda group: judge(texts.with_texts(group)), texts=texts)
    assert shown == {sample.session_id: sample.prompt for sample in graded(run.log)}


async def test_rescoring_shows_what_the_run_s_grader_was_shown(tmp_path: Path) -> None:
    run = await crashed_run(tmp_path, "fan_out")
    collector = Collector(run.log.run)
    items = [item for r in run.log.records for item in collector.apply(r.subject, r.data)]
    (group,) = (item for item in items if isinstance(item, Group))
    again = [completed_sample(completed_of(sample), prompt_of(group)) for sample in group.samples.values()]
    by_name = {sample.session_id: sample for sample in graded(run.log)}
    assert again == [by_name[sample.session_id] for sample in again]
    assert len(again) == len(by_name)


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_show_export_and_sql_have_the_sample_s_own(tmp_path: Path, function: str) -> None:
    run = await crashed_run(tmp_path, function)
    prompts, records = await read(run.log), await read_run(run.log)
    for sample, text in prompts.items():
        view = view_sample(records, records.samples[sample], None)
        assert (view.prompt, view.prompt_is_own) == (text, text.startswith("which?"))
    rows = await exported(run.log, tmp_path)
    assert {row.sample: row.prompt for row in rows} == prompts
    for row in rows:
        assert "".join(map(chr, row.tokens[: row.prompt_length])) == row.prompt
        assert (row.messages is None) == (row.group_prompt is not None) == row.prompt.startswith("which?")
    async with tables_of(opened(run.log)) as tables:
        assert (
            dict((await tables.sql("SELECT sample, prompt FROM samples WHERE completed IS NOT NULL")).rows()) == prompts
        )


async def test_lineage_has_it_too(tmp_path: Path) -> None:
    run = await crashed_run(tmp_path, "fan_out")
    for name, text in (await read(run.log)).items():
        answer = await lineage(opened(run.log), LineageQuery(kind=Kind.SAMPLE, value=name, depth=1))
        assert answer.samples[0].prompt == (text if text.startswith("which?") else None)
        assert text in lineage_text(answer)


async def test_the_prompts_of_a_run_are_those_of_its_groups(tmp_path: Path) -> None:
    run = await crashed_run(tmp_path, "fan_in")
    await export(opened(run.log), make_writer(Layout.JSONL, f"{tmp_path}/prompts.jsonl", prompts=True), [Fate.TRAINED])
    (line,) = (tmp_path / "prompts.jsonl").read_bytes().splitlines()
    (prompt, *_) = events(run, PromptSubmitted)
    assert msgspec.json.decode(line)["input"] == prompt.messages


async def test_an_older_log_has_no_text_of_such_prompts_and_shows_no_other(tmp_path: Path) -> None:
    run = await crashed_run(tmp_path, "fan_out")
    log = MemoryLog("sim")
    older = [
        msgspec.structs.replace(event, prompt_text="") if isinstance(event, RolloutCompleted) else event
        for event in (r.envelope.event for r in run.log.records)
    ]
    await append_all(log, [Append(enclose("sim", event, at=n, producer="test")) for n, event in enumerate(older)])
    assert isinstance(older[0], RunStarted)
    prompts, records = await read(log), await read_run(log)
    for name, text in prompts.items():
        sample, trajectory = records.samples[name], await read_trajectory(log, name, unpack)
        unknown = view_sample(records, sample, trajectory).prompt
        assert unknown == ("" if text.startswith("which?") else text)
        assert view_sample(records, sample, trajectory, None, letters).prompt == text
    async with tables_of(opened(log)) as tables:
        answer = await tables.sql("SELECT sample FROM samples WHERE completed IS NOT NULL AND prompt IS NULL")
        assert {sample for (sample,) in answer.rows()} == {
            s for s, text in prompts.items() if text.startswith("which?")
        }
