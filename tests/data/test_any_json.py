"""Labels and metadata of any JSON kind: from a file and from outside, through events, to graders, exports and SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.arrays import unpack
from schemas.inbox import InboxPrompt
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted
from slime_events.analysis.export.export import Layout, export, make_writer
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.analysis.export.sample import ExportedSample, Fate
from slime_events.analysis.query import tables_of
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.rewards.registry import built_in
from slime_events.plugins.sample import Sample
from storage.memory_log import MemoryLog
from tests.generate.scene import a_run, check_log, events
from tests.generate.test_own_prompts import graded
from tests.rescore.recorded import settings
from tests.simulation.crash import Crashed
from tests.simulation.parts import Letters
from tests.simulation.roles import make_outside
from tests.simulation.simulation import make_plan

VALUES: list[Any] = [{"answer": [1, "x"]}, 7, [1, {"a": None}], None, "7", True, 0.5, 0]
TOOLS = [{"name": "search"}]


def feed(folder: Path) -> PromptFeed:
    """Each value as label and as metadata."""
    rows = [{"input": f"row {n}", "label": value, "metadata": value, "tools": TOOLS} for n, value in enumerate(VALUES)]
    (folder / "rows.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    data = DataSettings(prompt_data=f"{folder}/rows.jsonl", label_key="label")
    return PromptFeed(PromptSource(data, 0, Letters(), 200), {}, data, Letters())


async def crashed_run(folder: Path, function: str = "two_turns") -> Crashed:
    run = a_run(folder / "run", function, make_plan(steps=1, groups=len(VALUES), samples=1), feed=feed)
    await run.run()
    check_log(run)
    return run


def opened(log: MemoryLog) -> OpenedRun:
    return OpenedRun(log, settings(), unpack, None, "sim")


def as_metadata(value: Any) -> Any:
    return {} if value is None else value


async def test_messages_stay_messages_without_a_chat_template(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    (tmp_path / "rows.jsonl").write_bytes(msgspec.json.Encoder().encode_lines([{"input": chat}] * 3))
    for template in (False, True):
        data = DataSettings(prompt_data=f"{tmp_path}/rows.jsonl", apply_chat_template=template)
        ours = PromptFeed(PromptSource(data, 0, Letters(), 200), {}, data, Letters())
        run = a_run(tmp_path / f"run{template}", "two_turns", feed=lambda folder, ours=ours: ours)
        await run.run()
        check_log(run)
        (prompt,) = events(run, PromptSubmitted)
        assert (prompt.text, prompt.messages, prompt.chat) == ("<user>hi", chat, not template)
        assert [sample.prompt for sample in graded(run.log)] == ["<user>hi" if template else chat]
        assert not events(run, RolloutCompleted)[0].attributes.keys() & {"prompt"}


async def test_through_events_to_graders(tmp_path: Path) -> None:
    run = await crashed_run(tmp_path)
    prompts = events(run, PromptSubmitted)
    assert [(prompt.label, prompt.metadata) for prompt in prompts] == [(value, as_metadata(value)) for value in VALUES]
    assert all(type(prompt.label) is type(value) for prompt, value in zip(prompts, VALUES, strict=True))
    seen = sorted(graded(run.log), key=lambda sample: sample.group_index or 0)
    assert [sample.label for sample in seen] == VALUES
    kept = [as_metadata(value) for value in VALUES]
    assert [sample.metadata for sample in seen] == [m | {"tools": TOOLS} if isinstance(m, dict) else m for m in kept]
    assert not any(done.attributes.keys() & {"label", "metadata"} for done in events(run, RolloutCompleted))


@pytest.mark.parametrize("layout", [Layout.JSONL, Layout.PARQUET])
async def test_to_exports_and_back(tmp_path: Path, layout: Layout) -> None:
    run = await crashed_run(tmp_path)
    path = f"{tmp_path}/rows.{layout}"
    await export(opened(run.log), make_writer(layout, path), [Fate.TRAINED])
    whole = LoadedStep.load(path, 0, groups=len(VALUES), samples=1)
    labels = [prompt.label for prompt in whole.prompts()]
    texts = ['{"answer":[1,"x"]}', "7", '[1,{"a":null}]', None, "7", "true", "0.5", "0"]
    assert labels == (VALUES if layout is Layout.JSONL else texts), "a column of a table has one type"
    assert [prompt.metadata for prompt in whole.prompts()] == [as_metadata(value) for value in VALUES]
    if layout is Layout.JSONL:
        rows = [msgspec.json.decode(line, type=ExportedSample) for line in Path(path).read_bytes().splitlines()]
        assert [row.label for row in rows] == VALUES
    async with tables_of(opened(run.log)) as tables:
        by_row = dict((await tables.sql("SELECT source_row, label FROM samples")).rows())
    assert [by_row[row] for row in range(len(VALUES))] == texts


async def test_a_function_may_leave_others(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "async def generate(args, sample, sampling_params, *, session):\n"
        "    sample.tokens = session.tokenize(sample.prompt)\n"
        "    (await session.generate(sample.tokens)).add_to(sample)\n"
        "    sample.label, sample.metadata = [sample.label], 5\n"
        "    return sample\n"
    )
    run = await crashed_run(tmp_path, f"{file}:generate")
    assert sorted(map(repr, (sample.label for sample in graded(run.log)))) == sorted(repr([v]) for v in VALUES)
    assert {sample.metadata for sample in graded(run.log)} == {5}
    await export(opened(run.log), make_writer(Layout.JSONL, f"{tmp_path}/rows.jsonl"), [Fate.TRAINED])
    rows = [msgspec.json.decode(line) for line in (tmp_path / "rows.jsonl").read_bytes().splitlines()]
    assert ([row["label"] for row in rows], {row["metadata"] for row in rows}) == ([[value] for value in VALUES], {5})


@pytest.mark.parametrize("value", VALUES)
def test_from_outside(value: Any) -> None:
    message = msgspec.json.encode({"key": "k", "prompt": "p", "label": value, "metadata": value})
    prompt = make_outside().submitted(msgspec.json.decode(message, type=InboxPrompt))
    assert (prompt.label, prompt.metadata) == (value, value)


def test_events_of_before_are_read() -> None:
    """Labels were texts."""
    prompt = {"type": "prompt.submitted", "group": "g", "text": "t", "tokens": {"dtype": "int32", "n": 0}}
    old = msgspec.msgpack.encode(prompt | {"source": {"path": "f"}, "label": "7", "metadata": {"a": 1}})
    assert msgspec.msgpack.decode(old, type=PromptSubmitted).label == "7"


@pytest.mark.parametrize(("rm_type", "label", "reward"), [("exact", 7, 1.0), ("f1", 7, 1.0), ("math", 7, 0.0)])
def test_built_in_graders_get_the_digits_of_a_number(rm_type: str, label: Any, reward: float) -> None:
    assert built_in(rm_type).function(None, Sample(response="7", label=label)) == reward
