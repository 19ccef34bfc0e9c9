"""A sample without a label: graders that need it say so, and pay nothing for an empty answer."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import UngradableSample
from schemas.inbox import InboxPrompt
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.math import grade_answer
from slime_events.plugins.rewards.outcome import Graded, RewardFailure
from slime_events.plugins.rewards.registry import BOXED, GRADERS, GRADES_WITHOUT_LABEL, built_in, is_empty
from slime_events.plugins.sample import Sample
from tests.simulation.parts import Letters

EMPTY = [None, "", " \t\n ", " ", [], {}, [""], ["", None], {"answer": " "}, float("nan"), ()]
NOT_EMPTY = ["0", 0, 0.0, False, "x", [0], {"answer": 0}, ["", "x"]]
ANSWERS = ["", " ", "4", r"\boxed{}", r"x</think>\boxed{}", "Answer: ", "nan", "None", "[]"]
NEED_IT = sorted(GRADERS.keys() - {"ifbench", "random", "reasoning_gym"})


@pytest.mark.parametrize("label", EMPTY, ids=repr)
@pytest.mark.parametrize("rm_type", [*NEED_IT, *(BOXED + name for name in NEED_IT)])
def test_without_a_label_nothing_is_graded(rm_type: str, label: Any) -> None:
    for answer in ANSWERS:
        with pytest.raises(UngradableSample, match="label-key"):
            built_in(rm_type).function(None, Sample(response=answer, label=label))


@pytest.mark.parametrize("label", EMPTY, ids=repr)
def test_empty(label: Any) -> None:
    assert is_empty(label)


@pytest.mark.parametrize("label", NOT_EMPTY, ids=repr)
def test_not_empty(label: Any) -> None:
    assert not is_empty(label)
    assert built_in("exact").function(None, Sample(response=str(label), label=label)) == 1.0


def test_graders_that_do_without() -> None:
    assert GRADES_WITHOUT_LABEL.keys() <= GRADERS.keys()
    gpqa = built_in("gpqa").function
    assert gpqa(None, Sample(response="so B", metadata={"correct_letter": "B"})) == 1.0
    assert gpqa(None, Sample(response="the owl", metadata={"correct_answer": "owl"})) == 1.0
    with pytest.raises(UngradableSample):
        gpqa(None, Sample(response="so B", metadata={"correct_letter": " ", "choices": ["owl", "fox"]}))
    assert built_in("random").function(None, Sample(response="x")) in (0, 1)
    metadata = {"instruction_id_list": ["format:no_whitespace"]}
    assert built_in("ifbench").function(None, Sample(response="x", metadata=metadata)) == 1.0


def test_the_reason_is_an_outcome_and_the_neighbour_is_graded() -> None:
    """Grade `exact` in the append that ends a rollout, like the engine."""
    samples = [Sample(response="", label=""), Sample(response="4", label="4"), Sample(response="4", label=None)]
    dispatcher = Dispatcher(RewardSettings(rm_type="exact"))
    empty, right, missing = (dispatcher.inline(sample, evaluation=False) for sample in samples)
    assert isinstance(right, Graded)
    assert right.value == 1.0
    for outcome, reason in ((empty, "an empty label, ''"), (missing, "no label")):
        assert isinstance(outcome, RewardFailure)
        assert outcome.kind is RewardFailureKind.INVALID
        assert reason in outcome.message


@pytest.mark.parametrize("label", ["$", r"\$", "%", r"\%", r"\boxed{}", r"\boxed{$}", "{}", r"\!", "cm"])
@pytest.mark.parametrize("answer", ["", " ", "\n"])
def test_an_empty_box_is_right_for_no_label(label: str, answer: str) -> None:
    """Labels of which the rules of spelling leave nothing."""
    assert not grade_answer(rf"\boxed{{{answer}}}", label)
    assert built_in("deepscaler").function(None, Sample(response=rf"</think>\boxed{{{answer}}}", label=label)) == 0


def taken(prompt: InboxPrompt, rm_type: str = "exact", **rollout: Any) -> PromptSubmitted | WrongField:
    settings = TrainSettings(rollout=RolloutSettings(**rollout), reward=RewardSettings(rm_type=rm_type))
    (submission,) = OutsidePrompts.of(settings, Letters()).submitted_all([prompt], "quiz")
    return submission


@pytest.mark.parametrize("label", [None, "", " ", [], [None]])
def test_a_prompt_from_outside_that_nobody_can_grade_is_refused_at_once(label: Any) -> None:
    """Sixteen of them would end the run, since its groups could not be trained on one after the other."""
    refused = taken(InboxPrompt(key="a", prompt="1+1", label=label))
    assert isinstance(refused, WrongField)
    assert (refused.field, "label-key" in refused.message) == ("label", True)


def test_a_prompt_from_outside_needs_no_label_where_another_gives_the_reward() -> None:
    prompt = InboxPrompt(key="a", prompt="1+1")
    for rm_type in ("outside", "random"):
        assert isinstance(taken(prompt, rm_type), PromptSubmitted)
    assert isinstance(taken(prompt, agents=True), PromptSubmitted)
    assert isinstance(taken(prompt, custom_generate_function_path="a.py"), PromptSubmitted)
    named = InboxPrompt(key="b", prompt="1+1", metadata={"rm_type": "outside"})
    assert isinstance(taken(named), PromptSubmitted)
    assert isinstance(taken(InboxPrompt(key="c", prompt="1+1", label=0)), PromptSubmitted)
