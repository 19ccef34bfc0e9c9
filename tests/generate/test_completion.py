"""Test the events of a generate function's result: tokens, versions, log-probs, masks, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.arrays import pack, unpack
from schemas.errors import EngineError, PlugPointError
from schemas.prompts import Source
from schemas.rollouts import RolloutCompleted, RoutedExperts, StopReason, Timings, WeightSpan
from schemas.turns import TurnRecorded, TurnRole
from serve_apps.rollouts.generate.custom import ATTRIBUTES_BYTES, CompletionContext, completions
from serve_apps.rollouts.generate.experts import experts_of
from serve_apps.rollouts.generate.journal import EndedTurn
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.loop.training.pending_batches import engine_log_probs
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.sample_view import completed_sample, requested_sample
from tests.made import requested, submitted
from tests.simulation.parts import Letters

PROMPT = [1, 2]
REQUEST = requested(prompt=PROMPT, max_new_tokens=9)

ASKED = submitted(text="\x01\x02", tokens=REQUEST.prompt, source=Source(path="p"), metadata={"given": [1]}, label="l")


def turn(prompt: list[int], tokens: list[int], *versions: int, stop: StopReason = StopReason.STOP) -> Any:
    """A generation whose tokens are each made by a version, with the log-prob -token / 10."""
    spans = tuple(WeightSpan(place, place + 1, version) for place, version in enumerate(versions))
    event = TurnRecorded(sample="g-s0", index=0, role=TurnRole.ASSISTANT, asked="", engine="e", spans=spans, stop=stop)
    array = np.array(tokens, np.int32)
    return np.array(prompt, np.int32), EndedTurn(event, array, -array.astype(np.float32) / 10)


TURNS = [turn(PROMPT, [3, 4], 5, 6), turn([1, 2, 3, 4, 9], [7], 6, stop=StopReason.LENGTH)]
WHOLE = [1, 2, 3, 4, 9, 7]
"""Two turns, and a tool result between them."""


def context(turns: list[Any] | None = None, **request: Any) -> CompletionContext:
    request_ = msgspec.structs.replace(REQUEST, **request)
    turns_ = TURNS if turns is None else turns
    return CompletionContext(request_, ASKED, np.array(PROMPT, np.int32), turns_, "e", Letters(), Timings())


def sample_of(**fields: Any) -> Sample:
    return Sample(**({"tokens": WHOLE, "response_length": 4, "status": Status.COMPLETED} | fields))


def completed(sample: Sample, shared: CompletionContext | None = None) -> RolloutCompleted:
    (event,) = completions(sample, shared or context())
    return event


def mask_of(event: RolloutCompleted) -> list[int]:
    return [1] * event.length if event.loss_mask is None else unpack(event.loss_mask).tolist()


def test_each_token_is_of_its_turn_and_what_a_tool_said_of_none() -> None:
    event = completed(sample_of())
    assert unpack(event.tokens).tolist() == [3, 4, 9, 7]
    assert unpack(event.log_probs).tolist() == pytest.approx([-0.3, -0.4, 0.0, -0.7])
    assert event.spans == (WeightSpan(0, 1, 5), WeightSpan(1, 2, 6), WeightSpan(3, 4, 6))
    assert mask_of(event) == [1, 1, 0, 1]
    assert (event.prompt, event.prompt_length, event.rollout, event.length) == (None, 2, "", 4)


def test_what_a_function_changed_is_no_more_the_turn_s() -> None:
    event = completed(sample_of(tokens=[1, 2, 3, 8, 9, 7]))
    assert mask_of(event) == [1, 0, 0, 0], "from the first other token on"
    assert unpack(event.log_probs).tolist() == pytest.approx([-0.3, 0.0, 0.0, 0.0])


def test_a_sample_may_end_within_a_turn() -> None:
    longer = context([turn(PROMPT, [3, 4, 5], 5, 6, 7)])
    for length, versions in ((1, [5]), (2, [5, 6])):
        event = completed(sample_of(tokens=[1, 2, 3, 4][: 2 + length], response_length=length), longer)
        assert [span.version for span in event.spans] == versions
        assert mask_of(event) == [1] * length
        assert unpack(event.log_probs).tolist() == pytest.approx([-0.3, -0.4][:length])


def test_a_turn_of_another_prompt_is_none_of_a_sample_s() -> None:
    event = completed(sample_of(), context([*TURNS, turn([7, 7], [3, 4], 1, 1)]))
    assert [span.version for span in event.spans] == [5, 6, 6]


def test_after_a_rest_older_versions_are_not_trained() -> None:
    assert mask_of(completed(sample_of(), context(mask_older=True))) == [0, 1, 0, 1]


def test_a_sample_that_is_to_be_removed_is_not_trained() -> None:
    event = completed(sample_of(remove_sample=True))
    assert mask_of(event) == [0, 0, 0, 0]


def test_log_probs_of_a_function_s_own() -> None:
    """They count where something is trained or was generated; their weights are the oldest that it may have had."""
    theirs = [-1.0, -2.0, -3.0, -4.0]
    event = completed(sample_of(rollout_log_probs=theirs))
    assert unpack(event.log_probs).tolist() == [-1.0, -2.0, 0.0, -4.0]
    own = completed(sample_of(rollout_log_probs=theirs, loss_mask=[1, 0, 1, 1]))
    assert unpack(own.log_probs).tolist() == theirs
    assert mask_of(own) == [1, 0, 1, 1]
    assert own.spans[-2:] == (WeightSpan(2, 3, 5), WeightSpan(3, 4, 6))
    alone = completed(sample_of(rollout_log_probs=theirs, loss_mask=[1] * 4), context([], min_version=8))
    assert alone.spans == (WeightSpan(0, 4, 8),)


@pytest.mark.parametrize(
    ("status", "stop"),
    [(Status.COMPLETED, StopReason.STOP), (Status.TRUNCATED, StopReason.LENGTH), (Status.PENDING, StopReason.LENGTH)],
)
def test_how_a_sample_ended(status: Status, stop: StopReason) -> None:
    """End as the function says; else as the last turn did."""
    assert completed(sample_of(status=status)).stop is stop


def test_a_sample_says_what_it_adds() -> None:
    event = completed(sample_of(metadata={"given": [1], "more": 2}))
    assert event.metadata == {"more": 2}
    assert completed(sample_of(metadata={"given": [3]})).metadata == {"given": [3]}


def left(**attributes: Any) -> Sample:
    """Return the sample that the function gets, with tokens, and then these attributes."""
    sample = requested_sample(REQUEST, ASKED)
    vars(sample).update({"tokens": WHOLE, "response_length": 4} | attributes)
    return sample


def shown(sample: Sample) -> Sample:
    """Return what its grader sees, read from the log."""
    event = msgspec.msgpack.decode(msgspec.msgpack.encode(completed(sample)), type=RolloutCompleted)
    return completed_sample(event, ASKED, unpack)


def test_a_grader_sees_every_attribute_that_the_function_left() -> None:
    deep: dict[str, Any] = {"list": [1, [2.5, None]], "dict": {"a": {"b": True}}}
    added = {"tool_call_count": 3, "payload_text": "x", "deep": deep, "nothing": None, "remove_sample": True}
    own = {"label": {"answer": 7}, "custom_rm_path": "m:f", "train_metadata": {"w": 1}, "index": 5, "group_index": 0}
    sample = left(**added, **own, prompt=[{"role": "user", "content": "hi"}], loss_mask=[1, 0, 0, 1])
    del sample.metadata["given"]
    seen = shown(sample)
    for name, value in vars(sample).items():
        assert name in ("status", "rollout_log_probs", "weight_versions") or getattr(seen, name) == value, name
    assert seen.metadata == {}
    assert seen.rollout_log_probs == pytest.approx([-0.3, -0.4, 0.0, -0.7])
    assert seen.weight_versions == ["5", "6", "6"]


def test_what_a_function_left_as_it_was_is_not_said_again() -> None:
    assert completed(left()).attributes == {}
    assert completed(left(prompt="other")).attributes == {"prompt": "other"}


def test_a_sample_made_anew_has_its_rollout_s_numbers() -> None:
    seen = shown(Sample(tokens=WHOLE, response_length=4))
    assert (seen.index, seen.session_id, seen.loss_mask) == (0, "g-s0", [1, 1, 0, 1])
    assert (seen.label, seen.metadata, seen.prompt) == (None, {}, ""), "as in slime, where a grader sees that very one"


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, b"x", {1, 2}, 2**70, [{"deep": lambda: 0}]], ids=lambda value: type(value).__name__
)
def test_what_cannot_be_carried_is_refused_with_its_name(value: Any) -> None:
    with pytest.raises(PlugPointError, match=r"sample\.tool_call_count.* the log carries"):
        completed(left(tool_call_count=value))
    with pytest.raises(PlugPointError, match=r"sample\.metadata\['more'\]"):
        completed(left(metadata={"more": value}))


def test_what_holds_itself_or_too_much_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    for value in (itself, "x" * ATTRIBUTES_BYTES):
        with pytest.raises(PlugPointError, match=r"sample\.state"):
            completed(left(state=value))


def test_attributes_have_all_of_their_room() -> None:
    """Encoded: a text of this length has a head of five bytes."""
    room = ATTRIBUTES_BYTES - 5
    assert completed(left(state="x" * room)).attributes["state"] == "x" * room
    for fields in ({"state": "x" * (room + 1)}, {"state": "x" * (room - 1), "more": [1]}):
        with pytest.raises(PlugPointError, match=r"sample\.state"):
            completed(left(**fields))


def test_numbers_of_numpy_are_numbers() -> None:
    seen = shown(left(score=np.float32(0.5), many=np.arange(3), pair=(1, 2), status="completed"))
    assert [getattr(seen, name) for name in ("score", "many", "pair")] == [0.5, [0, 1, 2], [1, 2]]
    assert seen.status is Status.COMPLETED


def test_what_a_function_changes_deep_in_the_metadata_is_its_own() -> None:
    sample = left()
    sample.metadata["given"].append(2)
    assert completed(sample).metadata == {"given": [1, 2]}
    assert ASKED.metadata == {"given": [1]}


def test_a_status_may_be_a_text() -> None:
    with pytest.raises(EngineError):
        completed(left(status="aborted"))
    assert completed(left(status="truncated")).stop is StopReason.LENGTH


def test_further_samples_go_before_the_one_that_was_asked_for() -> None:
    other = sample_of(tokens=[6, 3], response_length=1, loss_mask=[0])
    further, first = completions([sample_of(), other], context())
    assert (further.sample, further.rollout, first.sample, first.rollout) == ("g-s0-1", "g-s0", "g-s0", "")
    assert further.prompt is not None
    assert unpack(further.prompt).tolist() == [6]


class Special(Letters):
    """A tokenizer with a special token, 1."""

    def decode(self, tokens: Any, **kwargs: Any) -> str:
        assert kwargs == {"skip_special_tokens": False, "spaces_between_special_tokens": False}
        return "".join("<s>" if token == 1 else chr(token) for token in tokens)


def test_a_prompt_of_its_own_is_told_with_its_special_tokens() -> None:
    shared = msgspec.structs.replace(context([]), tokenizer=Special())
    event = completed(sample_of(tokens=[1, 98, 7], response_length=1, loss_mask=[0]), shared)
    assert (event.prompt_text, event.prompt_length) == ("<s>b", 2)
    completed_event = completed(sample_of(tokens=[97, 98, 7], response_length=1, loss_mask=[0], prompt="ab"), shared)
    other = completed(sample_of(tokens=[97, 98, 7], response_length=1, loss_mask=[0], prompt="abc"), shared)
    assert (completed_event.prompt_text, other.prompt_text) == ("ab", "ab")
    assert completed(sample_of()).prompt_text == ""


def test_trained_tokens_that_no_turn_generated_are_left_to_the_trainer() -> None:
    """Without a log-prob they have no span, and the batch says so; those of the turns are as ever."""
    for theirs in (None, [-0.3, None, None, -0.7]):
        event = completed(sample_of(loss_mask=[1, 1, 1, 1], rollout_log_probs=theirs))
        assert mask_of(event) == [1, 1, 1, 1]
        assert event.spans == (WeightSpan(0, 1, 5), WeightSpan(1, 2, 6), WeightSpan(3, 4, 6))
        assert unpack(event.log_probs).tolist() == pytest.approx([-0.3, -0.4, 0.0, -0.7])
        whole = Trajectory("g-s0", REQUEST.prompt)
        whole.complete(event, unpack)
        assert np.isnan(engine_log_probs(whole)).tolist() == [False, False, True, False]
    masked = Trajectory("g-s0", REQUEST.prompt)
    masked.complete(completed(sample_of()), unpack)
    assert np.isfinite(engine_log_probs(masked)).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"response_length": 0},
        {"response_length": 6},
        {"loss_mask": [1, 1, 0]},
        {"loss_mask": [1, 2, 0, 1]},
        {"rollout_log_probs": [-1.0]},
        {"rollout_log_probs": [-1.0, float("nan"), 0.0, 0.0]},
        {"rollout_log_probs": [-1.0, 0.0, 0.0, float("-inf")]},
        {"status": Status.FAILED},
    ],
)
def test_what_cannot_be_trained_on_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PlugPointError):
        completions(sample_of(**fields), context())


@pytest.mark.parametrize("returned", [None, [], [sample_of(), 7]])
def test_what_is_no_sample_is_refused(returned: Any) -> None:
    with pytest.raises(PlugPointError):
        completions(returned, context())


def test_a_sample_that_was_aborted_is_its_engine_s_failure() -> None:
    with pytest.raises(EngineError):
        completions(sample_of(status=Status.ABORTED), context())


@pytest.mark.parametrize("tokens", [[1, 2, 264, 7], [-1, 2, 3, 7], [1, 2, 3, 99999]])
def test_a_foreign_id_is_named_with_the_size_of_the_vocabulary(tokens: list[int]) -> None:
    with pytest.raises(PlugPointError, match=r"not in the model.s vocabulary of 264|below 0"):
        completions(sample_of(tokens=tokens, response_length=1), msgspec.structs.replace(context(), vocabulary=264))


def experts_for(first: int, tokens: int) -> RoutedExperts:
    """One expert in the one layer: `first` for the first token, and one more for each next."""
    return RoutedExperts(pack(range(first, first + tokens), "uint8"), layers=1, each=1)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (WHOLE, [10, 11, 12, 13, 14]),  # without the last token, which passed no layer
        ([1, 2, 3, 4, 9, 8], [10, 11, 12, 13, 14]),
        ([1, 2, 3, 4, 8, 7], [10, 11, 12, 13]),  # the tokens after another one may have other experts
        ([1, 2, 3], [10, 11, 12]),
        ([8, 2, 3], None),
    ],
)
def test_a_sample_has_the_experts_of_its_longest_turn(tokens: list[int], expected: list[int] | None) -> None:
    turns = [(prompt, numbered(ended, index)) for index, (prompt, ended) in enumerate(TURNS)]
    experts = experts_of(np.array(tokens, np.int32), turns, {0: experts_for(0, 3), 1: experts_for(10, 5)})
    assert (None if experts is None else unpack(experts.ids).tolist()) == expected


def numbered(ended: EndedTurn, index: int) -> EndedTurn:
    return EndedTurn(msgspec.structs.replace(ended.event, index=index), ended.tokens, ended.log_probs)
