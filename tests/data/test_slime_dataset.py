"""slime's `Dataset` and its data sources, as users' classes and functions call them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import PlugPointError
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.archived_prompts import ArchivedPrompt
from slime_events.loop.prompts.buffer_filter import BufferFilter, pop_first
from slime_events.loop.prompts.slime.data_source import (
    DataSource,
    RolloutDataSource,
    RolloutDataSourceWithBuffer,
)
from slime_events.loop.prompts.slime.dataset import Dataset
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.sample import Sample
from tests.data.templated import Templated
from tests.data.test_archived_prompts import prompted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [{"text": "p" * (number + 1), "label": number, "metadata": {"n": number}} for number in range(5)]
    rows.insert(2, {"other": 1})
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def labels(samples: Any) -> list[Any]:
    return [sample.label for sample in samples]


def test_a_dataset_has_the_rows_that_can_be_used(path: Path) -> None:
    dataset = Dataset(str(path), Templated(), max_length=4, label_key="label")  # type: ignore[arg-type]
    assert len(dataset) == 4
    assert labels(dataset) == labels(dataset.samples) == [0, 1, 2, 3]
    assert (dataset[1].prompt, dataset[1].metadata, dataset[-1].label) == ("pp", {"n": 1}, 3)
    assert labels(dataset[1:3]) == [1, 2]
    assert labels(Dataset(f"{path}@[:2]", None, label_key="label")) == [0, 1]
    assert labels(Dataset(str(path), None)) == [None] * 5


def test_a_dataset_is_shuffled_once_an_epoch(path: Path) -> None:
    dataset = Dataset(str(path), None, label_key="label", seed=7)
    orders = list[list[Any]]()
    for epoch in (0, 1):
        dataset.shuffle(epoch)
        orders.append(labels(dataset))
    assert sorted(orders[0]) == sorted(orders[1]) == [0, 1, 2, 3, 4]
    assert orders[0] != orders[1]
    dataset.samples = dataset.samples[:1]
    dataset.shuffle(1)
    assert len(dataset) == 1, "it is in that epoch's order already"
    dataset.shuffle(0)
    assert labels(dataset) == orders[0]
    assert labels(dataset.origin_samples) == [0, 1, 2, 3, 4]


def test_a_dataset_of_chats(tmp_path: Path) -> None:
    row = {"text": "hi", "more": {"n": 1}, "t": [{"name": "f"}], "tools": [{"name": "g"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    options: Any = {"tokenizer": Templated(), "apply_chat_template": True, "metadata_key": "more"}
    own, plain = (Dataset(str(tmp_path / "a.jsonl"), tool_key=key, **options)[0] for key in ("t", None))
    assert ('"f"' in own.prompt, '"g"' in plain.prompt) == (True, True)
    assert own.prompt.endswith("<user>hi")
    assert own.metadata == {"n": 1}
    with pytest.raises(NotImplementedError):
        Dataset(str(tmp_path / "a.jsonl"), None, multimodal_keys={"image": "i"})


def args(path: Path | None, **more: Any) -> ArgsView:
    named = {"input_key": "text", "label_key": "label"} | ({"prompt_data": str(path)} if path else {})
    return ArgsView(named | {"n_samples_per_prompt": 2, "rollout_seed": 1} | more)


def test_groups_are_numbered_from_the_first(path: Path) -> None:
    source = RolloutDataSource(args(path))
    groups = [*source.get_samples(2), *source.get_samples(4)]
    assert [labels(group) for group in groups] == [[label] * 2 for label in (0, 1, 2, 3, 4, 0)]
    assert [(sample.group_index, sample.index) for group in groups for sample in group] == [
        (number // 2, number) for number in range(12)
    ]
    assert groups[0][0] is not groups[0][1]
    assert (source.epoch_id, source.sample_offset, len(source)) == (1, 1, 6)
    assert source.get_samples(0) == []
    assert (source.epoch_id, source.sample_offset) == (1, 1)


def test_a_dataset_that_is_looked_at_gives_the_same_groups(path: Path) -> None:
    for shuffled in (False, True):
        streamed, held = (RolloutDataSource(args(path, rollout_shuffle=shuffled)) for _ in range(2))
        assert held.dataset is held.dataset is not None
        assert len(held) == 5
        first, second = held.get_samples(3), held.get_samples(4)
        assert len(second) == 4
        assert sorted(group[0].label for group in [*first, *second][:5]) == [0, 1, 2, 3, 4]
        assert (held.epoch_id, held.sample_offset) == (1, 2)
        if not shuffled:
            assert [group[0].label for group in streamed.get_samples(7)] == [
                group[0].label for group in [*first, *second]
            ]


def test_a_dataset_of_ones_own_is_drawn_from(path: Path) -> None:
    source = RolloutDataSource(args(None))
    assert (source.dataset, len(source)) == (None, 0)
    assert [sample.prompt for group in source.get_samples(1) for sample in group] == ["", ""]
    source.dataset = Dataset.of(PromptSource(DataSettings(prompt_data=str(path), input_key="text")))
    assert [group[0].prompt for group in source.get_samples(6)] == ["p", "pp", "ppp", "pppp", "ppppp", "p"]
    source.dataset.samples = []
    assert source.get_samples(1) == []


def test_a_source_is_saved_and_loaded(path: Path, tmp_path: Path) -> None:
    tmp_path = tmp_path / "runs" / "one"
    source = RolloutDataSource(args(path, save=str(tmp_path)))
    source.get_samples(3)
    source.save(7)
    source.save(7)
    again = RolloutDataSource(args(path, load=str(tmp_path)))
    again.load(7)
    assert again.state() == source.state()
    assert again.state() == {
        "sample_offset": 4,
        "epoch_id": 0,
        "sample_group_index": 3,
        "sample_index": 6,
        "metadata": {},
    }
    assert again.get_samples(1)[0][0].label == 3
    fresh = RolloutDataSource(args(path))
    fresh.load(7)
    assert fresh.sample_offset == 0, "it got no folder"
    fresh.restore({})
    assert (fresh.sample_index, fresh.metadata) == (0, {})


class Runs:
    """Record what a foreign state could execute."""

    def __reduce__(self) -> Any:
        return (list, ())


def test_no_code_of_a_saved_state_is_run(path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "rollout" / "global_dataset_state_dict_7.pt"
    saved.parent.mkdir()
    torch.save({"metadata": Runs()}, saved)
    with pytest.raises(pickle.UnpicklingError):
        RolloutDataSource(args(path, load=str(tmp_path))).load(7)


def test_a_dataset_that_is_held_goes_on_in_its_epoch(path: Path, tmp_path: Path) -> None:
    first = RolloutDataSource(args(path, rollout_shuffle=True, save=str(tmp_path), load=str(tmp_path)))
    assert first.dataset is not None
    first.get_samples(6)
    first.save(1)
    rest = [group[0].label for group in first.get_samples(4)]
    again = RolloutDataSource(first.args)
    assert again.dataset is not None
    again.load(1)
    assert [group[0].label for group in again.get_samples(4)] == rest


def test_a_buffer_is_drawn_from_first(path: Path) -> None:
    source = RolloutDataSourceWithBuffer(args(path))
    groups = source.get_samples(3)
    assert source.get_samples(0) == []
    source.add_samples(groups[1:])
    assert source.get_buffer_length() == 2
    assert source.get_samples(1) == [groups[1]]
    assert [group[0].label for group in source.get_samples(2)] == [2, 3]
    assert source.get_buffer_length() == 0
    source.update_metadata({"a": 1})
    source.update_metadata({"b": 2})
    assert source.get_metadata() == {"a": 1, "b": 2}
    for wrong in ([groups[0][:1]], [[*groups[0], *groups[0]]], [groups[0], "x"]):
        with pytest.raises(PlugPointError):
            source.add_samples(wrong)  # type: ignore[arg-type]
    buffer = list(groups)
    assert pop_first(None, None, buffer, 2) == groups[:2]
    assert buffer == groups[2:]


def test_the_base_of_data_sources() -> None:
    source = DataSource()
    assert len(source) == 0
    assert source.load() is source.save(1) is source.add_samples([]) is None  # type: ignore[func-returns-value]
    with pytest.raises(NotImplementedError):
        source.get_samples(1)


def members(row: int, count: int = 2) -> tuple[int, ArchivedPrompt]:
    samples: list[Sample | list[Sample]] = [Sample(group_index=row, index=index) for index in range(count)]
    return row, ArchivedPrompt(prompted("g"), 1, members=samples)


def choosing(tmp_path: Path, returns: str) -> BufferFilter:
    (tmp_path / "mine.py").write_text(f"def choose(args, rollout_id, buffer, count):\n    return {returns}\n")
    return BufferFilter(f"{tmp_path}/mine.py:choose", ArgsView({}))


@pytest.mark.parametrize(
    ("returns", "row"),
    [
        ("buffer[:count]", 4),
        ("[buffer.pop()]", 7),
        ("[]", None),
        ("(one for one in buffer[:1])", 4),
        ("[[[buffer[1][0]]]]", 7),
        ("buffer[len(buffer) - count:]", 7),
    ],
)
def test_a_buffer_filter_chooses_one_group(tmp_path: Path, returns: str, row: int | None) -> None:
    rows = [members(4), members(7)]
    assert choosing(tmp_path, returns).choose(rows) == row
    assert [len(each.members) for _, each in rows] == [2, 2]


@pytest.mark.parametrize(
    "returns", ["buffer", "[buffer[0][0], buffer[1][0]]", "['x']", "[[]]", "None", "[None]", "1 / 0", "[[object()]]"]
)
def test_a_buffer_filter_that_is_broken(tmp_path: Path, returns: str) -> None:
    with pytest.raises(PlugPointError):
        choosing(tmp_path, returns).choose([members(4), members(7)])


def test_a_buffer_filter_that_makes_up_a_group(tmp_path: Path) -> None:
    with pytest.raises(PlugPointError):
        choosing(tmp_path, "buffer[:1]").choose([(5, members(4)[1])])
