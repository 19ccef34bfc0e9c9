"""What a generate function returned, as events: tokens, versions, log-probs, masks, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.arrays import pack_tokens, unpack
from schemas.errors import EngineError, PlugPointError
from schemas.rollouts import RolloutCompleted, RolloutRequested, Sampling, StopReason, Timings, WeightSpan
from schemas.turns import TurnRecorded, TurnRole
from serve_apps.generate.custom import Made, completions
from serve_apps.generate.journal import Ended
from slime_events.plugins.sample import Sample, Status
from tests.simulation.parts import Letters

PROMPT = [1, 2]
REQUEST = RolloutRequested(
    sample="g-s0", group="g", index=0, prompt=pack_tokens(PROMPT), sampling=Sampling(max_new_tokens=9), seed=1
)


def turn(prompt: list[int], tokens: list[int], *versions: int, stop: StopReason = StopReason.STOP) -> Any:
    """A generation whose tokens are each made by a version, with the log-prob -token / 10."""
    spans = tuple(WeightSpan(place, place + 1, version) for place, version in enumerate(versions))
    event = TurnRecorded(sample="g-s0", index=0, role=TurnRole.ASSISTANT, asked="", engine="e", spans=spans, stop=stop)
    made = np.array(tokens, np.int32)
    return np.array(prompt, np.int32), Ended(event, made, -made.astype(np.float32) / 10)


TURNS = [turn(PROMPT, [3, 4], 5, 6), turn([1, 2, 3, 4, 9], [7], 6, stop=StopReason.LENGTH)]
WHOLE = [1, 2, 3, 4, 9, 7]
"""Two turns, and a tool result between them."""


def made(turns: list[Any] | None = None, **request: Any) -> Made:
    asked = msgspec.structs.replace(REQUEST, **request)
    given = TURNS if turns is None else turns
    return Made(asked, np.array(PROMPT, np.int32), given, {"given": [1]}, "e", Letters(), Timings())


def sample_of(**fields: Any) -> Sample:
    return Sample(**({"tokens": WHOLE, "response_length": 4, "status": Status.COMPLETED} | fields))


def completed(sample: Sample, given: Made | None = None) -> RolloutCompleted:
    (event,) = completions(sample, given or made())
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


def test_a_turn_of_another_prompt_is_none_of_a_sample_s() -> None:
    event = completed(sample_of(), made([*TURNS, turn([7, 7], [3, 4], 1, 1)]))
    assert [span.version for span in event.spans] == [5, 6, 6]


def test_after_a_rest_older_versions_are_not_trained() -> None:
    assert mask_of(completed(sample_of(), made(mask_older=True))) == [0, 1, 0, 1]


def test_a_sample_that_is_to_be_removed_is_not_trained() -> None:
    event = completed(sample_of(remove_sample=True))
    assert mask_of(event) == [0, 0, 0, 0]


def test_log_probs_of_a_function_s_own() -> None:
    """They count where something is trained or was generated; their weights are the oldest that it may have had."""
    given = [-1.0, -2.0, -3.0, -4.0]
    event = completed(sample_of(rollout_log_probs=given))
    assert unpack(event.log_probs).tolist() == [-1.0, -2.0, 0.0, -4.0]
    own = completed(sample_of(rollout_log_probs=given, loss_mask=[1, 0, 1, 1]))
    assert unpack(own.log_probs).tolist() == given
    assert mask_of(own) == [1, 0, 1, 1]
    assert own.spans[-2:] == (WeightSpan(2, 3, 5), WeightSpan(3, 4, 6))
    alone = completed(sample_of(rollout_log_probs=given, loss_mask=[1] * 4), made([], min_version=8))
    assert alone.spans == (WeightSpan(0, 4, 8),)


@pytest.mark.parametrize(
    ("status", "stop"),
    [(Status.COMPLETED, StopReason.STOP), (Status.TRUNCATED, StopReason.LENGTH), (Status.PENDING, StopReason.LENGTH)],
)
def test_how_a_sample_ended(status: Status, stop: StopReason) -> None:
    """As the function says; else as the last turn did."""
    assert completed(sample_of(status=status)).stop is stop


def test_a_sample_says_what_it_adds() -> None:
    event = completed(sample_of(metadata={"given": [1], "more": 2}))
    assert event.metadata == {"more": 2}
    assert completed(sample_of(metadata={"given": [3]})).metadata == {"given": [3]}


def test_further_samples_go_before_the_one_that_was_asked_for() -> None:
    other = sample_of(tokens=[6, 3], response_length=1, loss_mask=[0])
    further, first = completions([sample_of(), other], made())
    assert (further.sample, further.rollout, first.sample, first.rollout) == ("g-s0-1", "g-s0", "g-s0", "")
    assert further.prompt is not None
    assert unpack(further.prompt).tolist() == [6]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_length": 0},
        {"response_length": 6},
        {"loss_mask": [1, 1, 0]},
        {"loss_mask": [1, 2, 0, 1]},
        {"loss_mask": [1, 1, 1, 1]},
        {"rollout_log_probs": [-1.0]},
        {"rollout_log_probs": [-1.0, float("nan"), 0.0, 0.0]},
        {"rollout_log_probs": [-1.0, 0.0, 0.0, float("-inf")]},
        {"status": Status.FAILED},
    ],
)
def test_what_cannot_be_trained_on_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PlugPointError):
        completions(sample_of(**fields), made())


@pytest.mark.parametrize("returned", [None, [], [sample_of(), 7]])
def test_what_is_no_sample_is_refused(returned: Any) -> None:
    with pytest.raises(PlugPointError):
        completions(returned, made())


def test_a_sample_that_was_aborted_is_its_engine_s_failure() -> None:
    with pytest.raises(EngineError):
        completions(sample_of(status=Status.ABORTED), made())
