"""The prompt, the place and the reward of a sample that users' code is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas.arrays import pack_tokens, unpack
from schemas.prompts import PromptSubmitted
from schemas.rollouts import Place, RolloutCompleted, StopReason, WeightSpan
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.sample_view import (
    completed_sample,
    final_metadata,
    graded_metadata,
    graded_sample,
    group_samples,
    initial_metadata,
    prompt_decoder,
    prompt_text,
    requested_sample,
    shown_prompt,
    text_decoder,
    tokenizer_folder,
)
from slime_events.plugins.slime.helpers import process_vision_info
from tests import made
from tests.docs.pages import ROOT

BASE = str(ROOT / "slime_events" / "app" / "demo" / "base")
TOOLS = [{"name": "calculate"}]


def submitted(**fields: Any) -> PromptSubmitted:
    return made.submitted(**{"text": "the group's", "tokens": [1, 2]} | fields)


def done(**fields: Any) -> RolloutCompleted:
    usual: dict[str, Any] = {
        "sample": "g-s3", "tokens": [3, 4], "log_probs": [-0.5, -0.25], "prompt_length": 2, "text": "ab",
        "stop": StopReason.LENGTH, "spans": (WeightSpan(0, 1, 4), WeightSpan(1, 2, 5)),
    }  # fmt: skip
    return made.completed(**usual | fields)


def test_a_prompt_s_text_is_the_group_s_or_the_sample_s_own() -> None:
    own = pack_tokens([7])
    assert prompt_text(submitted(), None) == prompt_text(submitted(), done()) == "the group's"
    assert prompt_text(submitted(), done(prompt=own, prompt_text="own")) == "own"
    assert prompt_text(submitted(), done(prompt=own)) == ""
    assert prompt_text(submitted(), done(prompt=own), lambda tokens: f"of {tokens.n}") == "of 1"


def test_tokens_are_decoded_by_the_checkpoint_s_file(tmp_path: Path) -> None:
    decode = text_decoder(BASE)
    assert decode is not None
    assert [token for token in range(2000) if decode([token]).startswith("<|")], "special tokens too"
    assert text_decoder(None) is text_decoder("") is text_decoder(str(tmp_path)) is None
    assert prompt_decoder(None, unpack)(pack_tokens([1])) == ""
    assert prompt_decoder(BASE, unpack)(pack_tokens([5, 6])) == decode([5, 6])


def test_a_tokenizer_that_has_gone_is_that_of_the_runs_weights(tmp_path: Path) -> None:
    gone, weights = str(tmp_path / "gone"), tmp_path / "weights"
    assert tokenizer_folder(None, weights) is None
    assert tokenizer_folder(BASE, weights) == BASE
    assert tokenizer_folder(gone, None) == tokenizer_folder(gone, weights) == gone
    for version in ("v000001", "v000002"):
        (weights / version).mkdir(parents=True)
    assert tokenizer_folder(gone, weights) == gone
    (weights / "v000002" / "tokenizer.json").write_bytes(Path(BASE, "tokenizer.json").read_bytes())
    decode, same = text_decoder(tokenizer_folder(gone, weights)), text_decoder(BASE)
    assert decode is not None
    assert same is not None
    assert decode([5, 6]) == same([5, 6])


CHAT = [{"role": "user", "content": "?"}]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "the group's"),
        ({"messages": CHAT}, "the group's"),
        ({"chat": True}, "the group's"),
        ({"messages": CHAT, "chat": True}, CHAT),
    ],
)
def test_messages_are_shown_where_no_template_is_applied(fields: dict[str, Any], shown: Any) -> None:
    assert shown_prompt(submitted(**fields)) == shown
    request = made.requested("g-s3", prompt=[1, 2], max_new_tokens=2, seed=0)
    sample = requested_sample(request, submitted(**fields))
    assert (sample.prompt, sample.index, sample.group_index, sample.session_id) == (shown, 3, None, "g-s3")
    assert sample.prompt is not CHAT
    assert sample.status is Status.PENDING


def test_a_completed_sample_is_where_the_log_says() -> None:
    assert (completed_sample(done(), submitted()).index, completed_sample(done(), submitted()).group_index) == (3, None)
    placed = completed_sample(done(place=Place(9, 2)), submitted())
    assert (placed.index, placed.group_index) == (9, 2)
    assert (placed.weight_versions, placed.status, placed.response_length) == (["4", "5"], Status.TRUNCATED, 2)


def test_it_has_tokens_where_they_are_fetched() -> None:
    bare = completed_sample(done(), submitted())
    assert (bare.tokens, bare.rollout_log_probs, bare.loss_mask) == ([], None, None)
    full = completed_sample(done(), submitted(), unpack)
    assert (full.tokens, full.rollout_log_probs, full.loss_mask) == ([1, 2, 3, 4], [-0.5, -0.25], [1, 1])
    whole = Trajectory("g-s3", pack_tokens([9]))
    whole.complete(done(), unpack)
    whole.loss_mask = np.array([0, 1], np.int8)
    shown_sample = completed_sample(done(), submitted(), unpack, whole)
    assert (shown_sample.tokens[-2:], shown_sample.loss_mask) == ([3, 4], [0, 1])


@pytest.mark.parametrize("metadata", [{"a": 1}, [1]])
def test_metadata_has_the_tools_and_is_a_copy(metadata: Any) -> None:
    prompt = submitted(metadata=metadata, tools=TOOLS)
    shown_metadata = initial_metadata(prompt)
    assert shown_metadata == ({"a": 1, "tools": TOOLS} if isinstance(metadata, dict) else metadata)
    assert shown_metadata is not metadata
    assert initial_metadata(submitted(metadata=metadata)) == metadata
    ended = done(metadata={"b": 2})
    assert final_metadata(prompt, ended) == ({"a": 1, "b": 2} if isinstance(metadata, dict) else metadata)
    assert final_metadata(prompt, done(attributes={"metadata": 3})) == 3


@pytest.mark.parametrize("name", ["generate_function_path", "custom_rm_path"])
def test_a_filter_s_sample_has_the_paths_of_its_prompt(name: str) -> None:
    """Carry the paths that the sample of its grader carries."""
    plain = GroupState(group="g", prompt=pack_tokens([1]), order=3, samples={"g-s0": SampleState(sample="g-s0")})
    for group, path in ((plain, None), (replace(plain, asked=submitted(**{name: "own:f"})), "own:f")):
        (sample,) = group_samples(group)
        assert isinstance(sample, Sample)
        paths = dict.fromkeys(("generate_function_path", "custom_rm_path")) | {name: path}
        assert {name: getattr(sample, name) for name in paths} == paths
        assert (sample.index, sample.group_index, sample.session_id) == (3, 3, "g-s0")
    graded = completed_sample(done(), submitted(**{name: "own:f"}))
    assert getattr(graded, name) == "own:f"


@pytest.mark.parametrize("detail", [None, {}, {"metadata": 3}, {"metadata": {"b": [2]}}])
def test_a_grader_s_metadata_is_added_as_a_copy(detail: Any) -> None:
    event = made.assigned("g-s3", value=0.5, detail=detail)
    sample = Sample(metadata={"a": 1})
    graded_sample(sample, event)
    more = detail["metadata"] if detail and isinstance(detail["metadata"], dict) else {}
    assert (sample.reward, sample.metadata, graded_metadata(event)) == (0.5, {"a": 1} | more, more)
    if more:
        sample.metadata["b"].append(3)
        assert event.detail == {"metadata": {"b": [2]}}


def test_images_and_videos_are_read_by_the_package_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(prompt: Any, image_patch_size: int) -> tuple[Any, Any]:
        return (prompt, image_patch_size), "videos"

    monkeypatch.setitem(sys.modules, "qwen_vl_utils", SimpleNamespace(process_vision_info=read))  # type: ignore[arg-type]
    plain, sized = SimpleNamespace(), SimpleNamespace(patch_size=16)
    for processor, size in ((plain, 14), (sized, 16)):
        images_and_videos = process_vision_info(CHAT, SimpleNamespace(image_processor=processor))
        assert images_and_videos == {"images": (CHAT, size), "videos": "videos"}
