"""slime's reader of the prompt file, to be inherited from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from schemas.errors import PlugPointError
from schemas.prompts import PromptSubmitted
from slime_events.core.config.data import DataSettings
from slime_events.loop.conductor.user_data_source import UserDataSource, source_length
from slime_events.loop.prompts.slime.data_source import DataSource, RolloutDataSource, RolloutDataSourceWithBuffer
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.sample_view import completed_sample, requested_sample
from tests import made
from tests.simulation.parts import Letters

MINE = """
from slime.rollout.data_source import RolloutDataSource

class Odd(RolloutDataSource):
    def get_samples(self, num_samples):
        groups = super().get_samples(2 * num_samples)
        return [group for group in groups if int(group[0].label) % 2]
"""


def test_a_class_over_slimes_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.loop.prompts.slime.data_source.load_tokenizer", lambda folder: Letters())
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"input": "n {n}", "label": {n}}}\n' for n in range(5)))
    (tmp_path / "mine.py").write_text(MINE)
    data = DataSettings(prompt_data=str(tmp_path / "rows.jsonl"), label_key="label", apply_chat_template=True)
    more = {"n_samples_per_prompt": 3, "rollout_seed": 1, "hf_checkpoint": "base"}
    source = load_function(f"{tmp_path}/mine.py:Odd")(ArgsView({**msgspec.to_builtins(data), **more}))
    groups = [*source.get_samples(2), *source.get_samples(2)]
    firsts = [group[0] for group in groups]
    assert [(sample.prompt, sample.label, sample.index) for sample in firsts] == [
        ("<user>n 1", 1, 3),
        ("<user>n 3", 3, 9),
        ("<user>n 1", 1, 18),
    ]
    assert {len(group) for group in groups} == {3}
    assert len(source) == 5
    with pytest.raises(NotImplementedError, match="DataSource has no get_samples"):
        DataSource().get_samples(1)


def with_buffer(folder: Path, rows: int = 3, **more: Any) -> RolloutDataSourceWithBuffer:
    (folder / "rows.jsonl").write_text("".join(f'{{"input": "p{n}"}}\n' for n in range(rows)))
    args = {"prompt_data": str(folder / "rows.jsonl"), "n_samples_per_prompt": 2, "rollout_seed": 1}
    return RolloutDataSourceWithBuffer(ArgsView(args | {"save": str(folder), "load": str(folder)} | more))


def prompts(groups: list[list[Sample]]) -> list[Any]:
    return [group[0].prompt for group in groups]


FROM_SLIME = """
from slime.rollout.data_source import RolloutDataSourceWithBuffer

class Mine(RolloutDataSourceWithBuffer):
    def __init__(self, args):
        super().__init__(args)
        self.dataset.origin_samples = [one for one in self.dataset.origin_samples if int(one.label) % 2]
        self.dataset.samples = self.dataset.origin_samples
        self.asked = []

    def _get_samples_from_buffer(self, num_samples):
        self.asked.append(num_samples)
        return super()._get_samples_from_buffer(num_samples)[:1]

    def load(self, rollout_id=None):
        super().load(rollout_id)
        self.dataset.samples[0].metadata["begun"] = rollout_id
"""


def test_a_class_that_changes_what_slimes_reader_holds(tmp_path: Path) -> None:
    """Through the run's own drawing, twice: a restart continues after the end of the first."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"input": "p{n}", "label": {n}}}\n' for n in range(6)))
    (tmp_path / "mine.py").write_text(FROM_SLIME)
    data = DataSettings(
        prompt_data=str(tmp_path / "rows.jsonl"), label_key="label", data_source_path=f"{tmp_path}/mine.py:Mine"
    )
    args = ArgsView(msgspec.to_builtins(data) | {"n_samples_per_prompt": 2, "rollout_seed": 1})
    source = UserDataSource(data, args, Letters(), None)
    drawn = [prompt for prompt in source.take({}, 5) if isinstance(prompt, PromptSubmitted)]
    assert [prompt.text for prompt in drawn] == ["p1", "p3", "p5", "p1", "p3"]
    assert [prompt.metadata for prompt in drawn[:2]] == [{"begun": -1}, {}]
    again = UserDataSource(data, args, Letters(), None)
    assert again.take({data.data_source_path or "": 3}, 2) == drawn[3:]
    assert source_length(data, args) == 3


def test_shuffled_samples_of_slimes_reader_are_those_that_are_streamed(tmp_path: Path) -> None:
    streamed, held = (with_buffer(tmp_path, rows=5, rollout_shuffle=True) for _ in range(2))
    assert held.dataset is not None
    assert prompts(streamed.get_samples(12)) == prompts(held.get_samples(12))
    assert (streamed.epoch_id, streamed.sample_offset) == (held.epoch_id, held.sample_offset) == (2, 2)


def test_samples_of_one_group_that_differ_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from slime.utils.types import Sample\n"
        "class Mine:\n"
        "    def __init__(self, args): pass\n"
        "    def get_samples(self, n): return [[Sample(prompt='p'), Sample(prompt='p', metadata={'role': 1})]]\n"
    )
    data = DataSettings(data_source_path=f"{tmp_path}/mine.py:Mine")
    with pytest.raises(PlugPointError, match="group 0 differ in `metadata`"):
        UserDataSource(data, ArgsView({}), Letters(), None).take({}, 1)
    with pytest.raises(PlugPointError, match="length"):
        source_length(data, ArgsView({}))


def test_what_a_source_sets_on_a_sample_is_there_for_functions_graders_and_filters(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from slime.utils.types import Sample\n"
        "class Mine:\n"
        "    def __init__(self, args): pass\n"
        "    def get_samples(self, n):\n"
        "        sample = Sample(prompt='p')\n"
        "        sample.level, sample.seen = 3, {'in': (1, 2)}\n"
        "        return [[sample, sample]]\n"
    )
    data = DataSettings(data_source_path=f"{tmp_path}/mine.py:Mine")
    (drawn,) = UserDataSource(data, ArgsView({}), Letters(), None).take({}, 1)
    assert isinstance(drawn, PromptSubmitted)
    generated = requested_sample(made.requested(prompt=drawn.tokens), drawn)
    graded = completed_sample(made.completed(text="a", attributes={"seen": "changed"}), drawn)
    assert (vars(generated)["level"], vars(generated)["seen"]) == (3, {"in": [1, 2]})
    assert (vars(graded)["level"], vars(graded)["seen"]) == (3, "changed")


def test_attributes_that_differ_in_a_group_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from slime.utils.types import Sample\n"
        "class Mine:\n"
        "    def __init__(self, args): pass\n"
        "    def get_samples(self, n):\n"
        "        group = [Sample(prompt='p'), Sample(prompt='p')]\n"
        "        group[1].level = 3\n"
        "        return [group]\n"
    )
    data = DataSettings(data_source_path=f"{tmp_path}/mine.py:Mine")
    with pytest.raises(PlugPointError, match="group 0 differ in `level`"):
        UserDataSource(data, ArgsView({}), Letters(), None).take({}, 1)


def test_what_was_given_back_comes_first_and_survives_a_restart(tmp_path: Path) -> None:
    source = with_buffer(tmp_path)
    first = source.get_samples(2)
    first[1][0].response, first[1][0].status = "begun", Status.ABORTED
    source.add_samples(first)
    source.update_metadata({"mine": [1]})
    source.save(4)
    again = with_buffer(tmp_path)
    again.load(3)
    assert (again.get_buffer_length(), again.sample_offset, again.get_metadata()) == (0, 0, {}), "saved as another step"
    again.load(4)
    assert (again.get_buffer_length(), again.sample_offset, again.get_metadata()) == (2, 2, {"mine": [1]})
    assert again.buffer == first
    assert prompts(again.get_samples(3)) == ["p0", "p1", "p2"]
    assert again.sample_group_index == 3


def test_a_state_of_slimes_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rollout" / "global_dataset_state_dict_9.pt"
    path.parent.mkdir()
    torch.save({"sample_offset": 1, "epoch_id": 2, "sample_group_index": 7, "sample_index": 14, "metadata": {}}, path)
    source = with_buffer(tmp_path)
    source.load(9)
    (group,) = source.get_samples(1)
    assert [(sample.prompt, sample.group_index, sample.index) for sample in group] == [("p1", 7, 14), ("p1", 7, 15)]


def test_a_filter_chooses_from_the_buffer(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def newest(args, rollout_id, buffer, n):\n    return [buffer.pop()]\n")
    source = with_buffer(tmp_path, buffer_filter_path=f"{tmp_path}/mine.py:newest")
    source.add_samples(source.get_samples(2))
    assert prompts(source.get_samples(2)) == ["p1", "p2"]
    assert prompts(source.buffer) == ["p0"]
    assert source.get_samples(0) == []


def test_groups_of_another_size_are_refused(tmp_path: Path) -> None:
    source = with_buffer(tmp_path)
    for wrong in ([[Sample()]], [Sample(), Sample()]):
        with pytest.raises(PlugPointError):
            source.add_samples(wrong)
    source.add_samples([])
    assert source.get_buffer_length() == 0


def test_without_a_file_there_is_what_was_added(tmp_path: Path) -> None:
    source = with_buffer(tmp_path, rollout_global_dataset=False)
    source.add_samples([[Sample(), Sample()]])
    with pytest.raises(PlugPointError):
        source.get_samples(2)
    assert len(source) == 0
    source.save(1)
    assert not (tmp_path / "rollout").exists()
    reader = RolloutDataSource(source.args)
    assert [len(group) for group in reader.get_samples(2)] == [2, 2]
    with pytest.raises(PlugPointError):
        reader.add_samples([])
