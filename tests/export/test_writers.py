"""Writers: where rows go, when they go there, and the columns of tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import DataError, InvalidValue
from slime_events.analysis.export import writers
from slime_events.analysis.export.dump import dump_path, load_dump, train_dump_path
from slime_events.analysis.export.export import Layout, make_writer
from slime_events.analysis.export.sample import ExportedPrompt, ExportedSample, Fate, as_slime, prompts_of
from slime_events.analysis.export.writers import table_of
from slime_events.plugins.sample import Status


def row(number: int = 0, **fields: Any) -> ExportedSample:
    """Return the row of a sample in a group of its own."""
    of_all: dict[str, Any] = {
        "run": "r", "fate": Fate.TRAINED, "step": 3, "group": f"g{number}", "sample": f"g{number}-s0", "rollout": "",
        "index": 0, "dataset": "train", "prompt": "ab", "messages": None, "label": "1", "tools": None, "metadata": {},
        "source": "p", "line": 1, "tokens": [1, 2, 3], "prompt_length": 2, "response": "c", "response_length": 1,
        "log_probs": [-0.5], "loss_mask": [1], "spans": [(0, 1, 2)], "stop": "stop", "reward": 1.0,
        "reward_detail": None, "advantage_input": 0.5, "reason": None,
    }  # fmt: skip
    return ExportedSample(**of_all | fields)


@pytest.mark.parametrize("layout", [Layout.JSONL, Layout.PARQUET, Layout.DUMP])
def test_without_rows_there_is_no_file(tmp_path: Path, layout: Layout) -> None:
    writer = make_writer(layout, f"{tmp_path}/of/{{rollout_id}}.{layout}")
    writer.close()
    assert (writer.files, list(tmp_path.iterdir())) == ([], [])


def test_lines_are_all_there_once_it_is_closed(tmp_path: Path) -> None:
    writer = make_writer(Layout.JSONL, f"{tmp_path}/all.jsonl")
    writer.write([row(0), row(1)])
    writer.write([row(2)])
    writer.close()
    assert [json.loads(line)["group"] for line in (tmp_path / "all.jsonl").read_text().splitlines()] == [
        "g0",
        "g1",
        "g2",
    ]
    assert writer.files == [f"{tmp_path}/all.jsonl"]


def test_a_table_is_written_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ROWS_IN_SHARD", 30)
    writer = make_writer(Layout.PARQUET, f"{tmp_path}/all.parquet")
    for number in range(4):
        writer.write([row(number)])
    writer.close()
    parquet = pq.ParquetFile(tmp_path / "all.parquet")
    assert [parquet.metadata.row_group(place).num_rows for place in range(parquet.num_row_groups)] == [3, 1]
    assert parquet.read()["group"].to_pylist() == ["g0", "g1", "g2", "g3"]
    assert writer.files == [f"{tmp_path}/all.parquet"]


def test_shards_of_a_split_are_full_and_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ROWS_IN_SHARD", 2)
    writer = make_writer(Layout.HF, f"{tmp_path}/set/")
    for number in range(3):
        writer.write([row(number)])
        writer.write([row(10 + number, fate=Fate.EVALUATED)])
    writer.close()
    files = [f"data/{split}-{shard:05d}.parquet" for shard in range(2) for split in ("train", "test")]
    assert writer.files == [f"{tmp_path}/set/{name}" for name in (*files, "README.md")]
    tables = [pq.read_table(tmp_path / "set" / name)["group"].to_pylist() for name in files]
    assert tables == [["g0", "g1"], ["g10", "g11"], ["g2"], ["g12"]]
    card = (tmp_path / "set" / "README.md").read_text().splitlines()
    assert card[4:-3] == [
        "  - split: train", "    path:", f"    - {files[0]}", f"    - {files[2]}",
        "  - split: test", "    path:", f"    - {files[1]}", f"    - {files[3]}",
    ]  # fmt: skip


def test_a_dump_is_of_a_step_or_of_an_evaluated_version(tmp_path: Path) -> None:
    writer = make_writer(Layout.DUMP, f"{tmp_path}/{{rollout_id}}.pt")
    writer.write([row(0)])
    writer.write([row(1, fate=Fate.EVALUATED, step=4)])
    writer.write([row(2, fate=Fate.REJECTED, step=None)])
    writer.write([row(2, fate=Fate.REJECTED, step=5)])
    writer.close()
    assert [Path(file).name for file in writer.files] == ["3.pt", "eval_4.pt"]
    assert [load_dump(file)[0] for file in writer.files] == [3, 4]


def test_paths_of_dumps_name_their_rollout() -> None:
    assert dump_path("d/{rollout_id}.pt", 3) == "d/3.pt"
    assert train_dump_path("d/{rollout_id}_{rank}.pt", 3) == "d/3_0.pt"
    for wrong in ("d/all.pt", "d/{rank}.pt", "d/{rollout_id}_{rank}.pt"):
        with pytest.raises(InvalidValue):
            dump_path(wrong, 3)


COLUMNS = {
    "step": pa.int64(), "index": pa.int64(), "line": pa.int64(), "prompt_length": pa.int64(),
    "response_length": pa.int64(), "reward": pa.float64(), "advantage_input": pa.float64(),
    "tokens": pa.list_(pa.int32()), "log_probs": pa.list_(pa.float32()), "teacher_log_probs": pa.list_(pa.float32()),
    "loss_mask": pa.list_(pa.int8()),
    "spans": pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("version", pa.int64())])),
}  # fmt: skip


def test_a_column_has_one_type_whatever_is_in_it() -> None:
    nothing = row(step=None, reward=None, advantage_input=None, spans=[], tokens=[], log_probs=[], loss_mask=[])
    for written in (row(), nothing):
        schema = table_of([written]).schema
        assert {name: schema.field(name).type for name in COLUMNS} == COLUMNS
        assert {schema.field(name).type for name in schema.names if name not in COLUMNS} == {pa.string()}
    full = row(messages=[{"a": 1}], label={"b": 2}, metadata=[3], tools=[{}], reward_detail={"c": 4}, group_prompt="x")
    (values,) = table_of([full]).to_pylist()
    as_json = {name: json.loads(values[name]) for name in writers.AS_JSON}
    assert as_json == {name: getattr(full, name) for name in writers.AS_JSON}
    assert json.loads(values["label"]) == {"b": 2}
    assert table_of([row(label="1")])["label"].to_pylist() == ["1"]
    assert table_of([row(label=None)])["label"].to_pylist() == [None]


def prompt(input_: Any, **fields: Any) -> ExportedPrompt:
    return ExportedPrompt(input=input_, label=None, metadata={}, tools=None, group="g", rewards=[1.0, None], **fields)


def test_prompts_are_a_column_of_texts_or_of_chats() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert table_of([prompt("a"), prompt("b")])["input"].to_pylist() == ["a", "b"]
    table = table_of([prompt(chat), prompt(chat[:1])])
    assert table["input"].to_pylist() == [chat, chat[:1]]
    assert table["rewards"].to_pylist() == [[1.0, None]] * 2
    for wrong in (["a", chat], [[{"role": "user"}]], [[{"role": "user", "content": None}]]):
        with pytest.raises(DataError):
            table_of([prompt(input_) for input_ in wrong])


def test_a_prompt_is_what_its_group_was_asked() -> None:
    chat, other = [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]
    rows = [
        row(0, messages=chat, reward=1.0), row(1), row(0, messages=chat, reward=None, label="no"),
        row(2, messages=None, group_prompt=other),
    ]  # fmt: skip
    prompts = prompts_of(rows)
    assert [(prompt.group, prompt.input, prompt.rewards, prompt.label) for prompt in prompts] == [
        ("g0", chat, [1.0, None], "1"), ("g1", "ab", [1.0], "1"), ("g2", other, [1.0], "1")
    ]  # fmt: skip


def test_a_sample_of_slime_s_has_all_of_a_row() -> None:
    rows = [
        row(0, stop="length", metadata=[1], teacher_log_probs=[-1.0], spans=[(0, 1, 2), (1, 2, 4)]),
        row(1, sample="g1-s0-1", rollout="g1-s0", metadata={"k": 1}, reward_detail={"d": 1}),
        row(1, stop=None),
    ]
    first, second, third = as_slime(rows)
    assert [(sample.group_index, sample.index, sample.rollout_id) for sample in (first, second, third)] == [
        (0, 0, 0), (1, 1, 1), (1, 2, 1)
    ]  # fmt: skip
    assert [sample.status for sample in (first, second, third)] == [Status.TRUNCATED, Status.COMPLETED, Status.PENDING]
    assert (first.weight_versions, first.teacher_log_probs, first.session_id) == (["2", "4"], [-1.0], "g0-s0")
    ours = [sample.metadata["slime_events"] for sample in (first, second)]
    assert (ours[0]["metadata"], ours[0]["rollout"], ours[0]["spans"]) == ([1], "g0-s0", [[0, 1, 2], [1, 2, 4]])
    assert ("metadata" in ours[1], ours[1]["rollout"], ours[1]["detail"]) == (False, "g1-s0", {"d": 1})
    assert second.metadata["k"] == 1
    plain = {name: getattr(second, name) for name in ("tokens", "loss_mask", "reward", "label", "prompt", "response")}
    assert plain == {name: getattr(rows[1], name) for name in plain}
    assert msgspec.json.decode(msgspec.json.encode(rows[0]), type=ExportedSample) == rows[0]
