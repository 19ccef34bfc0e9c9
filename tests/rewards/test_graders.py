"""The built-in graders; slime's own numbers are in tests/harness/conformance, these are the edges around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UnknownGrader
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import dapo, deepscaler, exact, f1, gpqa, math, mathd, reasoning_gym
from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.registry import GRADERS, built_in, resolve
from slime_events.plugins.rewards.unboxed import RULES
from slime_events.plugins.sample import Sample


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed 2", None),
        (r"\boxed{1", None),
        ("nothing", None),
        (r"\boxed{}", ""),
    ],
)
def test_last_boxed(text: str, inner: str | None) -> None:
    assert last_boxed(text) == inner


def test_last_boxed_passes_over_a_box_without_braces_where_told() -> None:
    assert last_boxed(r"\boxed{1} and \boxed 2", opening=r"\boxed{") == "1"


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        (r"\frac12", r"\frac{1}{2}", True),
        (r"x = 5", "5", True),
        ("7 3/4", r"7\frac{3}{4}", True),
        ("1,234", "1234", True),
        ("2*x", "x*2", True),
        ("2", "2.5", False),
        ("1/2", "2/4", False),
        ("(1, 2)", "(1,2)", True),
        ("(1, 2)", "[1, 2]", False),
        ("(1,2)", "(1,3)", False),
        ("(1,2)", "(3,2)", False),
        ("(1, x+1)", "(1, 1+x)", True),
        ("2+2", "4", False),
        ("4", "2+2", False),
        ("2^{11}*y", "2048*y", False),
        ("import os", "4", False),
        (r"\sqrt", r"\sqrt{2}", False),
        (r"\frac", "1", False),
    ],
)
def test_math_equality(answer: str, truth: str, right: bool) -> None:
    assert math.grade_answer(rf"so \boxed{{{answer}}}", truth) is right


@given(st.text(alphabet="0123456789abfrct\\{}()[],./^$% =-sqx", max_size=24))
def test_spelling_never_raises_and_an_answer_equals_itself(text: str) -> None:
    assert mathd.grade_answer_mathd(text, text)
    assert isinstance(mathd.mathd_normalize_answer(text), str)


def test_deepscaler_needs_a_usable_label() -> None:
    with pytest.raises(TypeError, match="label-key"):
        deepscaler.get_deepscaler_rule_based_reward(r"</think>\boxed{1}", None)


def test_f1_closed_answers() -> None:
    assert f1.f1_score("yes it is", "yes") == (0.0, 0.0, 0.0)
    assert f1.f1_score("Yes!", "yes") == (1.0, 1.0, 1.0)


def test_gpqa_by_words_and_without_right_letter() -> None:
    choices = {"choices": ["red fox", "blue whale"]}
    assert gpqa.compute_gpqa_reward("surely the Blue Whale", "blue whale", choices) == 1.0
    assert gpqa.compute_gpqa_reward("it swims", "sea lion", choices) == 0.0
    assert gpqa.compute_gpqa_reward("", None, None) == 0.0


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>8-5=3</think> 4 ", 1.0),
        ("4", 1.0),
        ("4<|im_end|>", 1.0),
        ("4<end_of_turn>\n", 1.0),
        ("4<｜end▁of▁sentence｜>", 1.0),
        ("4<|eot_id|> </s>", 1.0),
        ("<|4|>", 0.0),
        ("4<|>", 0.0),
        ("4<|two words|>", 0.0),
        ("<think>4</think>5", 0.0),
        ("<think>4", 0.0),
        ("", 0.0),
    ],
)
def test_exact(response: str, value: float) -> None:
    assert exact.reward(response, Sample(label="4")) == value


@pytest.mark.parametrize("end", ["", "<|im_end|>", "<eos>", "</s>\n"])
def test_an_end_token_is_no_part_of_what_a_rule_reads(end: str) -> None:
    assert f1.reward(f"34{end}", Sample(label="34")) == 1.0
    assert dapo.reward(f"Answer: 34{end}", Sample(label="34"))["score"] == 1.0
    assert gpqa.reward(f"Answer: B{end}", Sample(label="B")) == 1.0


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>8+2=10</think> 10 <|im_end|>\n", "10"),
        ("no thought<|im_end|>", "no thought"),
        ("<think>cut short", "<think>cut short"),
        ("a</think>b</think>c", "c"),
        ("stop here</answer>", "stop here</answer>"),
        ("<|im_end|>", ""),
        ("", ""),
    ],
)
def test_the_answer_of_a_sample(response: str, answer: str) -> None:
    assert Sample(response=response).answer == answer


def test_exact_without_a_label_is_wrong() -> None:
    assert exact.reward("", Sample(label=None)) == 0.0


def test_reasoning_gym_scores_with_partial_credit() -> None:
    import reasoning_gym as gym

    entry = gym.create_dataset("basic_arithmetic", seed=1, size=1)[0]
    sample = Sample(label=entry["answer"], metadata={"entry": entry})
    assert reasoning_gym.reward(f"so <answer>{entry['answer']}</answer>", sample) == 1.0
    assert reasoning_gym.reward(rf"<think>hm</think>\boxed{{{entry['answer']}}}", sample) == 1.0
    assert reasoning_gym.reward("no idea", sample) < 1.0
    flat = Sample(label=entry["answer"], metadata=entry["metadata"])
    assert reasoning_gym.reward(entry["answer"], flat) == 1.0
    with pytest.raises(ValueError, match="source_dataset"):
        reasoning_gym.reward("1", Sample(label="1"))


def test_random_grades_alike_on_replay() -> None:
    grade = GRADERS["random"]
    values = [grade("x", Sample(index=index, group_index=3)) for index in range(64)]
    assert values == [grade("x", Sample(index=index, group_index=3)) for index in range(64)]
    assert set(values) == {0, 1}


def test_dispatch_order_and_boxed_prefix() -> None:
    settings = RewardSettings(rm_type=" math ")
    sample = Sample(response=r"\boxed{brown fox}", label="a quick brown fox", metadata={"rm_type": "boxed_f1"})
    grader = resolve(settings, sample)
    assert grader.name == "boxed_f1"
    assert grader.function(None, sample) == pytest.approx(0.8)
    assert resolve(settings, Sample()).name == "math"
    assert len(grader.digest) == 64
    assert grader.digest != resolve(settings, Sample()).digest


@pytest.mark.parametrize(
    ("name", "response", "label", "value"),
    [
        ("math", r"so \boxed{5}", "5", 1),
        ("math", r"so \boxed{5}", "6", 0),
        ("math", r"\boxed{6} no, \boxed{5}", "5", 1),
        ("math", "just 5", "5", 0),
        ("deepscaler", r"hm</think>\boxed{5}", "5", 1),
        ("deepscaler", r"hm</think>\boxed{5}", "6", 0),
        ("deepscaler", "hm</think>5", "5", 0),
        ("dapo", r"so \boxed{5}", "5", 1.0),
        ("dapo", "so \\boxed{\n5}", "5", 1.0),
        ("dapo", r"Answer: 5 is wrong, \boxed{6}", "5", -1.0),
        ("dapo", "Answer: 5", "5", -1.0),
        ("dapo", r"\boxed{}", "5", -1.0),
        ("exact", r"so \boxed{ 5 }", "5", 1.0),
        ("exact", "5", "5", 0.0),
        ("f1", r"a lot of words \boxed{brown fox}", "brown fox", 1.0),
        ("gpqa", r"The answer is A, or \boxed{C}", "C", 1.0),
    ],
)
def test_boxed_grades_what_the_last_box_holds(name: str, response: str, label: str, value: float) -> None:
    grader, sample = built_in(f"boxed_{name}"), Sample(response=response, label=label)
    returned = grader.function(None, sample)
    assert (returned[grader.reward_key] if grader.reward_key else returned) == value


@pytest.mark.parametrize("name", sorted(GRADERS))
def test_a_rule_for_the_box_that_was_another_once_is_in_the_digest(name: str) -> None:
    assert (built_in(f"boxed_{name}").digest == built_in(name).digest) is (name not in RULES)


@pytest.mark.parametrize("name", [None, "", "  ", "nope", "boxed_", "boxed_nope"])
def test_an_unknown_grader_is_named(name: str | None) -> None:
    with pytest.raises(UnknownGrader, match="deepscaler"):
        built_in(name)
    with pytest.raises(NotImplementedError):
        built_in(name)


def test_dapo_needs_no_reward_key() -> None:
    assert resolve(RewardSettings(rm_type="dapo"), Sample()).reward_key == "score"
    assert resolve(RewardSettings(rm_type="dapo", reward_key="acc"), Sample()).reward_key == "acc"
    with_eval = RewardSettings(rm_type="dapo", reward_key="score", eval_reward_key="acc")
    assert resolve(with_eval, Sample(), evaluation=True).reward_key == "acc"
