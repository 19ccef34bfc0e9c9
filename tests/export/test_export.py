"""Test what is exported, in every layout, and what reading it again gives."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from schemas.batches import BatchSealed
from schemas.errors import DataError, InvalidValue
from schemas.groups import GroupRejected
from schemas.runs import Branched
from slime_events.analysis.export.dump import load_dump
from slime_events.analysis.export.export import Layout, export, make_writer
from slime_events.analysis.export.sample import ExportedPrompt, Fate
from slime_events.analysis.export.writers import table_of
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.loop.prompts.prompt import PromptRow
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.sample import Status
from tests import made
from tests.cli.invoke import command
from tests.replay.golden import golden

export_command = command("export")
RECORDS = golden("resting")
BATCHES = [r.envelope.event for r in RECORDS if isinstance(r.envelope.event, BatchSealed)]


@pytest.fixture
def archived(tmp_path: Path) -> str:
    return made.archived(tmp_path / "archive", RECORDS)


@pytest.fixture
async def opened(archived: str) -> AsyncIterator[OpenedRun]:
    async with open_run(archived) as run:
        yield run


async def test_a_line_for_each_sample_that_was_trained(opened: OpenedRun, tmp_path: Path) -> None:
    out = tmp_path / "new" / "trained.jsonl"
    done = await export(opened, make_writer(Layout.JSONL, str(out)), [Fate.TRAINED])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["sample"] for row in rows] == [sample for batch in BATCHES for sample in batch.samples]
    assert [row["reward"] for row in rows] == [reward for batch in BATCHES for reward in batch.raw_rewards]
    assert [row["advantage_input"] for row in rows] == [reward for batch in BATCHES for reward in batch.rewards]
    assert done.samples == {Fate.TRAINED: len(rows)}
    assert any(0 in row["loss_mask"] for row in rows)  # some rested, and lost their older tokens
    for row in rows:
        assert "".join(map(chr, row["tokens"][: row["prompt_length"]])) == row["prompt"]
        assert len(row["tokens"]) == row["prompt_length"] + row["response_length"]
        assert len(row["log_probs"]) == len(row["loss_mask"]) == row["response_length"] == row["spans"][-1][1]


async def test_a_table_has_the_same_as_the_lines(opened: OpenedRun, tmp_path: Path) -> None:
    fates = [Fate.TRAINED, Fate.REJECTED]
    await export(opened, make_writer(Layout.JSONL, f"{tmp_path}/all.jsonl"), fates)
    await export(opened, make_writer(Layout.PARQUET, f"{tmp_path}/all.parquet"), fates)
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    rows = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["reason"] is not None for row in rows] == [row["fate"] == "rejected" for row in rows]
    for row in rows:
        row["spans"] = [list(span.values()) for span in row["spans"]]
        for name in ("messages", "tools", "metadata", "reward_detail"):
            row[name] = None if row[name] is None else json.loads(row[name])
    assert rows == lines
    rejected = [r.envelope.event.group for r in RECORDS if isinstance(r.envelope.event, GroupRejected)]
    assert list(dict.fromkeys(row["group"] for row in rows if row["fate"] == "rejected")) == rejected


@pytest.mark.parametrize("layout", [Layout.JSONL, Layout.PARQUET])
async def test_exported_prompts_are_prompt_data(opened: OpenedRun, tmp_path: Path, layout: Layout) -> None:
    path = f"{tmp_path}/prompts.{layout.value}"
    await export(opened, make_writer(layout, path, prompts=True), [Fate.TRAINED], range(2))
    source = PromptSource(DataSettings(prompt_data=path, label_key="label"))
    rows = source.take(0, len(source))
    groups = [group for batch in BATCHES[:2] for group in batch.groups]
    assert [(row.text, row.label) for row in rows if isinstance(row, PromptRow)] == [
        (f"prompt {int(group.rpartition('-')[2])}", "1") for group in groups
    ]


async def test_a_data_set_of_hugging_face(opened: OpenedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.analysis.export.writers.ROWS_IN_SHARD", 4)
    old = tmp_path / "set" / "data" / "train-00099.parquet"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"of an earlier export")
    done = await export(opened, make_writer(Layout.HF, f"{tmp_path}/set"), list(Fate))
    card = (tmp_path / "set" / "README.md").read_text()
    assert card.startswith("---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n")
    splits = re.findall(r"  - split: (\w+)\n    path:\n((?:    - data/[-\w]+\.parquet\n)+)", card)
    assert [split for split, _ in splits] == ["train", "rejected"]
    schemas = []
    for (_, paths), fate in zip(splits, (Fate.TRAINED, Fate.REJECTED), strict=True):
        shards = [pq.read_metadata(tmp_path / "set" / path.removeprefix("    - ")) for path in paths.splitlines()]
        assert sum(shard.num_rows for shard in shards) == done.samples[fate]
        schemas += [shard.schema.to_arrow_schema() for shard in shards]
    assert len(schemas) > 2
    assert all(schema == schemas[0] for schema in schemas), "a column of nothing has the type of its others"


@pytest.mark.parametrize(
    "inputs",
    [
        ["a text", [{"role": "user", "content": "a chat"}]],
        [[{"role": "user", "content": "a chat", "name": "of more than that"}]],
        [[{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]],
    ],
)
def test_prompts_of_several_kinds_are_no_column(tmp_path: Path, inputs: list[Any]) -> None:
    common: dict[str, Any] = {"label": None, "metadata": {}, "tools": None, "group": "g", "rewards": [1.0]}
    rows = [ExportedPrompt(input=each, **common) for each in inputs]
    with pytest.raises(DataError, match="--to jsonl"):
        table_of(rows)
    if len(rows) > 1:
        with pytest.raises(DataError, match="--to jsonl"):
            table_of(rows[1:], table_of(rows[:1]).schema)


def test_dumps_of_slime_s_form(archived: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        export_command(
            [archived, "--to", "debug-rollout", "--out", f"{tmp_path}/d/{{rollout_id}}.pt", "--steps", "1-2"]
        )
        == 0
    )
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["1.pt", "2.pt"]
    rollout_id, samples = load_dump(f"{tmp_path}/d/2.pt")
    assert (rollout_id, [sample.session_id for sample in samples]) == (2, list(BATCHES[2].samples))
    assert [sample.reward for sample in samples] == list(BATCHES[2].raw_rewards)
    assert {sample.status for sample in samples} <= {Status.COMPLETED, Status.TRUNCATED}
    assert [sample.group_index for sample in samples] == [0, 0, 1, 1]


def test_what_cannot_be_exported(archived: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"must have \{rollout_id\}"):
        export_command([archived, "--to", "debug-rollout", "--out", f"{tmp_path}/all.pt"])
    for layout in ("jsonl", "parquet", "hf"):
        with pytest.raises(DataError, match="no samples that are evaluated"):
            export_command([archived, "--to", layout, "--out", f"{tmp_path}/out/e.{layout}", "--what", "evaluated"])
    assert not (tmp_path / "out").exists()


async def test_a_learner_s_samples_are_those_of_the_run_that_it_follows(archived: str, tmp_path: Path) -> None:
    """Its batch of step 1 lacks the first group of that run's; what it is trained on has its own rewards."""
    was = BATCHES[1]
    left = [sample for sample in was.samples if not sample.startswith(f"{was.groups[0]}-s")]
    batch = replace(
        was, groups=was.groups[1:], samples=tuple(left), rewards=(0.25,) * len(left), raw_rewards=(7.0,) * len(left)
    )
    branched = Branched(
        run="sim", where=archived, position=1, version=1, weights_digest="", optimizer_digest="", follows=True
    )
    log = await made.log(made.started(branched=branched), batch, run="learner")
    learner = made.opened(log, where="")
    done = await export(learner, make_writer(Layout.JSONL, f"{tmp_path}/all.jsonl"), list(Fate))
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["fate"] == Fate.TRAINED]
    assert [row["sample"] for row in trained] == left
    assert {(row["run"], row["step"], row["reward"], row["advantage_input"]) for row in trained} == {
        ("learner", 1, 7.0, 0.25)
    }
    assert all(row["response"] for row in trained)
    assert {row["group"] for row in rows if row["fate"] == Fate.REJECTED} >= {was.groups[0]}
    assert done.samples[Fate.EVALUATED] == 0
