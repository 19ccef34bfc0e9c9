"""A dump of any writer as the events of a step: which samples belong together, and what each event says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.arrays import pack_tokens, unpack
from schemas.errors import DataError
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested, Sampling, StopReason, WeightSpan
from slime_events.analysis.export.dump import load_dump
from slime_events.analysis.export.export import Layout, make_writer
from slime_events.analysis.export.loaded import LoadedStep, load_rows
from slime_events.analysis.export.sample import OURS, Fate
from slime_events.plugins.sample import Sample
from tests.export.test_writers import row


def plain(tokens: list[int], length: int = 1, **fields: Any) -> dict[str, Any]:
    """A sample as slime dumps one."""
    return {"tokens": tokens, "response_length": length, "prompt": "p", "response": "r", "reward": 1.0} | fields


def step(folder: Path, *samples: dict[str, Any], number: int = 2, **overrides: Any) -> LoadedStep:
    torch.save({"rollout_id": number, "samples": list(samples)}, folder / f"{number}.pt")
    shape = {"groups": 2, "samples": 1} | overrides
    return LoadedStep.load(f"{folder}/{{rollout_id}}.pt", number, **shape)


def places(loaded: LoadedStep) -> list[list[list[Any]]]:
    return [[[row.index for row in rollout] for rollout in group] for group in loaded.groups]


def answers(loaded: LoadedStep, place: int = 0, *, index: int = 0, **changes: Any) -> list[Any]:
    tokens = loaded.groups[place][index][0].tokens[:1]
    request = RolloutRequested(**{
        "sample": f"g-s{index}", "group": "g", "index": index, "prompt": pack_tokens(tokens), "seed": 1, "attempt": 3,
        "sampling": Sampling(max_new_tokens=4), "min_version": 6, **changes,
    })  # fmt: skip
    return loaded.answers(request, place, "loader-1")


def test_groups_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    rows = [plain([1, 2], group_index=group, index=place) for place, group in enumerate((7, 3, 7, 3))]
    assert places(step(tmp_path, *rows, samples=2)) == [[[1], [3]], [[0], [2]]]
    rows[0]["group_index"] = rows[2]["group_index"] = 0
    assert places(step(tmp_path, *rows, samples=2)) == [[[0], [2]], [[1], [3]]]


def test_without_numbers_groups_are_one_behind_the_other(tmp_path: Path) -> None:
    unnumbered = [plain([1, 2], index=place, group_index=None if place else 4) for place in range(4)]
    assert places(step(tmp_path, *unnumbered, samples=2)) == [[[0], [1]], [[2], [3]]]


def test_samples_of_a_rollout_have_its_number_or_its_name(tmp_path: Path) -> None:
    numbered = [plain([1, 2], index=place, group_index=place // 2, rollout_id=place // 2) for place in range(4)]
    assert places(step(tmp_path, *numbered)) == [[[0, 1]], [[2, 3]]]
    for place, sample in enumerate(numbered):
        sample |= {"rollout_id": 0, "metadata": {OURS: {"rollout": f"g-s{place // 2}"}}}
    assert places(step(tmp_path, *numbered)) == [[[0, 1]], [[2, 3]]]
    for place, sample in enumerate(numbered):
        sample["metadata"] = {OURS: {"sample": f"g{place // 2}-s0" + ("-1" if place % 2 else "")}}
    assert places(step(tmp_path, *numbered)) == [[[0, 1]], [[2, 3]]]
    for place, sample in enumerate(numbered):
        sample["metadata"] = {OURS: f"g{place}"}
    assert places(step(tmp_path, *numbered)) == [[[0, 1]], [[2, 3]]]


@pytest.mark.parametrize("shape", [{"groups": 1}, {"groups": 3}, {"samples": 2}, {"groups": 1, "part": 1.0}])
def test_another_number_of_groups_or_samples_is_refused(tmp_path: Path, shape: dict[str, Any]) -> None:
    samples = [plain([1, 2], index=place, group_index=place) for place in range(2)]
    with pytest.raises(DataError):
        step(tmp_path, *samples, **shape)


@pytest.mark.parametrize(
    ("part", "kept"), [(1.0, [0, 1, 2, 3, 4]), (0.6, [0, 3, 4]), (0.5, [0, 4]), (0.2, [4]), (0.99, [0, 1, 3, 4])]
)
def test_a_part_is_of_the_first_and_the_last_groups(tmp_path: Path, part: float, kept: list[int]) -> None:
    samples = [plain([1, 2], index=place, group_index=place) for place in range(5)]
    assert [index for ((index,),) in places(step(tmp_path, *samples, groups=len(kept), part=part))] == kept


def test_an_answer_is_of_the_weights_that_were_asked_for(tmp_path: Path) -> None:
    loaded = step(tmp_path, plain([1, 2, 3], 2, rollout_log_probs=[-0.5, -1.0], loss_mask=[0, 1], status="truncated"),
                  plain([1, 2], remove_sample=True, status="aborted"))  # fmt: skip
    done, reward = answers(loaded)
    assert isinstance(done, RolloutCompleted)
    assert isinstance(reward, RewardAssigned)
    assert (done.sample, done.group, done.attempt, done.start, done.length, done.prompt_length) == (
        "g-s0",
        "g",
        3,
        0,
        2,
        1,
    )
    assert (done.spans, done.engine, done.stop, done.text) == (
        (WeightSpan(0, 2, 6),),
        "loader-1",
        StopReason.LENGTH,
        "r",
    )
    assert (unpack(done.tokens).tolist(), unpack(done.log_probs).tolist()) == ([2, 3], [-0.5, -1.0])
    assert done.loss_mask is not None
    assert unpack(done.loss_mask).tolist() == [0, 1]
    assert (done.prompt, done.prompt_text, done.rollout, done.metadata, done.attributes) == (None, "", "", {}, {})
    assert (reward.sample, reward.group, reward.value, reward.grader, reward.teacher_log_probs) == (
        "g-s0", "g", 1.0, "recorded", None
    )  # fmt: skip
    removed, _ = answers(loaded, 1)
    assert unpack(removed.loss_mask).tolist() == [0]
    assert (unpack(removed.log_probs).tolist(), removed.stop) == ([0.0], StopReason.ABORT)


@pytest.mark.parametrize("mask", [None, [1, 1]])
def test_a_mask_of_ones_is_none(tmp_path: Path, mask: list[int] | None) -> None:
    loaded = step(tmp_path, plain([1, 2, 3], 2, loss_mask=mask), groups=1)
    done, _ = answers(loaded)
    assert (done.loss_mask, done.stop) == (None, StopReason.STOP)


def test_further_samples_come_first_with_prompts_of_their_own(tmp_path: Path) -> None:
    samples = [plain([1, 2], rollout_id=0, group_index=0), plain([7, 3], rollout_id=0, group_index=0, prompt="own")]
    further, first, *rewards = answers(step(tmp_path, *samples, groups=1))
    assert [row.sample for row in (further, first, *rewards)] == ["g-s0-1", "g-s0", "g-s0-1", "g-s0"]
    assert (further.rollout, further.prompt_text, first.rollout, first.prompt) == ("g-s0", "own", "", None)
    assert unpack(further.prompt).tolist() == [7]


METADATA: list[tuple[list[Any], Any, list[Any]]] = [
    ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], {"a": 1}, [({"b": 2}, {}), ({"b": 3}, {})]),
    ([{"a": 1}, {}], {}, [({"a": 1}, {}), ({}, {})]),
    ([{"a": 1}, [2]], {}, [({"a": 1}, {}), ({}, {"metadata": [2]})]),
    ([[2], [2]], [2], [({}, {}), ({}, {})]),
    ([[2], {"a": 1}], {}, [({}, {"metadata": [2]}), ({"a": 1}, {})]),
]


@pytest.mark.parametrize(("metadata", "shared", "own"), METADATA)
def test_what_samples_have_in_common_is_their_prompts(
    tmp_path: Path, metadata: list[Any], shared: Any, own: Any
) -> None:
    samples = [plain([1, 2], group_index=0, metadata=item) for item in metadata]
    loaded = step(tmp_path, *samples, groups=1, samples=2)
    (prompt,) = loaded.prompts()
    assert prompt.metadata == shared
    done = [answers(loaded, index=index)[0] for index in range(2)]
    assert [(row.metadata, row.attributes) for row in done] == own


def test_a_prompt_says_where_it_came_from(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "?"}]
    ours = {"messages": chat, "text": "as text"}
    loaded = step(
        tmp_path,
        plain([1, 2, 3], 1, prompt=chat, label="l", metadata={OURS: {"text": "as text"}, "k": 1}),
        plain([1, 2], prompt="plain", metadata={OURS: ours}),
    )
    first, second = loaded.prompts()
    assert (first.text, first.messages, first.label, first.metadata) == ("as text", chat, "l", {"k": 1})
    assert (second.text, second.messages, second.metadata) == ("plain", chat, {})
    assert unpack(first.tokens).tolist() == [1, 2]
    for place, prompt in enumerate((first, second)):
        source = prompt.source
        assert (source.path, source.row, source.epoch, source.offset) == (loaded.template, place, 2, 4 + place)
        assert prompt.dataset == "loaded"
    assert first.group != second.group


@pytest.mark.parametrize(("reward", "key", "value"), [({"a": 2.0}, "a", 2.0), (3, None, 3.0), (3, "a", 3.0)])
def test_a_reward_is_a_number_or_has_a_key(tmp_path: Path, reward: Any, key: str | None, value: float) -> None:
    loaded = step(tmp_path, plain([1, 2], reward=reward), groups=1, reward_key=key)
    assert answers(loaded)[-1].value == value


@pytest.mark.parametrize("reward", [None, {"a": 2.0}, "x"])
def test_a_reward_that_is_none_is_refused(tmp_path: Path, reward: Any) -> None:
    with pytest.raises(DataError):
        answers(step(tmp_path, plain([1, 2], reward=reward), groups=1))


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": [1]},
        {"response_length": 2},
        {"response_length": 0},
        {"loss_mask": [1, 1]},
        {"rollout_log_probs": [-1.0, -1.0]},
        {"tokens": "no"},
        {"status": "asleep"},
        {"response_length": None},
    ],
)
def test_a_sample_that_does_not_fit_together_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    torch.save({"rollout_id": 0, "samples": [plain([1, 2]) | fields]}, tmp_path / "0.pt")
    with pytest.raises(DataError):
        load_dump(f"{tmp_path}/0.pt")


def test_a_dump_of_another_version_is_read(tmp_path: Path) -> None:
    later = plain([1, 2], of_later=1, loss_mask=None) | {"tokens": torch.tensor([1, 2]), "rollout_log_probs": [-1.0]}
    for pack in ({"rollout_id": "x", "samples": [later]}, {"samples": [later]}):
        torch.save(pack, tmp_path / "0.pt")
        number, (sample,) = load_dump(f"{tmp_path}/0.pt")
        assert (number, sample.tokens, sample.loss_mask, hasattr(sample, "of_later")) == (-1, [1, 2], None, False)
        assert isinstance(sample, Sample)
    (tmp_path / "0.pt").write_bytes((tmp_path / "0.pt").read_bytes()[:-100])
    with pytest.raises(DataError):
        load_dump(f"{tmp_path}/0.pt")
    for wrong in ({"rollout_id": 1}, {"samples": {}}, {"samples": [3]}):
        torch.save(wrong, tmp_path / "0.pt")
        with pytest.raises(DataError):
            load_dump(f"{tmp_path}/0.pt")


def test_rows_of_other_steps_and_fates_are_left_out(tmp_path: Path) -> None:
    for layout in (Layout.JSONL, Layout.PARQUET):
        writer = make_writer(layout, f"{tmp_path}/all.{layout}")
        for number, (fate, of_step) in enumerate(((Fate.TRAINED, 3), (Fate.TRAINED, 4), (Fate.EVALUATED, 3))):
            writer.write([row(number, fate=fate, step=of_step, metadata={"n": [number]}, messages=[{"a": "b"}])])
        writer.close()
        (sample,) = load_rows(writer.files[0], 3)
        ours = sample.metadata.pop(OURS)
        assert (sample.session_id, sample.metadata) == ("g0-s0", {"n": [0]})
        assert (ours["messages"], ours["spans"]) == ([{"a": "b"}], [[0, 1, 2]])
        assert load_rows(writer.files[0], 5) == []


def test_tensors_of_a_foreign_dump_are_lists(tmp_path: Path) -> None:
    tensors = {"loss_mask": torch.tensor([1]), "rollout_log_probs": torch.tensor([-0.5]), "reward": torch.tensor(2.0)}
    torch.save({"rollout_id": 4, "samples": [plain([1, 2], **tensors)]}, tmp_path / "0.pt")
    number, (sample,) = load_dump(f"{tmp_path}/0.pt")
    values = (sample.loss_mask, sample.rollout_log_probs, sample.reward)
    assert (number, values, [type(value) for value in values]) == (4, ([1], [-0.5], 2.0), [list, list, float])
