"""Each rule of the built-in graders by an answer that only this rule decides."""

from __future__ import annotations

from typing import Any

import pytest

from slime_events.plugins.rewards import dapo, deepscaler, exact, f1, gpqa, math, mathd, random_reward, reasoning_gym
from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.sample import Sample


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("x=5", "5", True),
        ("f(x)=5", "5", False),
        ("0.5", r"\frac{1}{2}", True),
        (".5", r"\frac12", True),
        (".25", "0.25", True),
        (r"5\text{ cm}", "5", True),
        (r"5\text{ cm}\text{ or so}", "5", False),
        (r"\frac1", r"\frac1", True),
        (r"\frac1 ", r" \frac1", True),
        (r"2 \frac1", r"2\frac1", True),
        (r"\$5", "5", True),
        (r"45^\circ", "45", True),
        (r"\sqrt3", r"\sqrt{3}", True),
        (r"-3/4", r"\frac{-3}{4}", True),
        (r"50\%", "50", True),
    ],
)
def test_spelling(answer: str, truth: str, right: bool) -> None:
    assert mathd.grade_answer_mathd(answer, truth) is right


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("(1,2)", "(1,2,3)", False),
        ("[1, 2)", "[1, 2]", False),
        ("((1,2),x)", "((1,2),x)", True),
        ("((1)+x,2)", "(x+1,2)", False),
        ("1/2", "0.5", True),
        ("1/2", "2/4", False),
        ("2.5 million", "2.5*10^6", True),
        ("7 billion", "7*10^9", True),
        ("5 cm", "5", True),
        ("12 inches", "12", True),
        ("9 feet^2", "9", True),
        (r"45^ \circ", "45", True),
        ("7 3/4", "31/4", True),
        ("X+1", "x+1", True),
        ("2.005", "2", False),
        ("2.000000001", "2", True),
        ("a*b*c", "c*b*a", False),
        ("a*b", "b*a", True),
        ("(x+1)^2", "x^2+2*x+1", True),
        ("1 or 2", "1, 2", True),
        ("1 and 2", "1, 2", True),
        ("", "x", False),
        ("x", "", False),
    ],
)
def test_equality_in_sympy_s_eyes(answer: str, truth: str, right: bool) -> None:
    """Use rules that the comparison of spellings lacks."""
    assert math.grade_answer_sympy(answer, truth) is right


@pytest.mark.parametrize(
    ("label", "right"), [(r"\boxed{4}", True), (r"so \boxed{5}", False), (r"\boxed 4", False), ("4", True)]
)
def test_a_boxed_label_is_taken_out_of_its_box(label: str, right: bool) -> None:
    assert math.grade_answer(r"\boxed{4}", label) is right


@pytest.mark.parametrize("label", ["", None])
def test_without_a_label_an_empty_box_is_not_right(label: str | None) -> None:
    assert math.grade_answer(r"so \boxed{}", label) is False
    assert math.reward(r"so \boxed{}", Sample(label=label)) == 0


def test_the_last_box_counts_to_its_own_brace() -> None:
    assert last_boxed(r"\boxed{1} then \boxed{2{3}4} end}") == "2{3}4"


@pytest.mark.parametrize(
    ("answer", "label", "acc", "pred"),
    [
        ("Answer: 1\nAnswer: 7", "7", True, "7"),
        ("Answer: 7\nAnswer: 1", "7", False, "1"),
        ("Answer: 7", "7.0", True, "7"),
        ("Answer: 1,234", "1234", True, "1234"),
        ("Answer: x=7", "7", True, "7"),
        ("7", "7", False, dapo.INVALID),
    ],
)
def test_dapo(answer: str, label: str, acc: bool, pred: str) -> None:
    assert dapo.reward(answer, Sample(label=label)) == {"score": 1.0 if acc else -1.0, "acc": acc, "pred": pred}


def test_dapo_reads_the_end_only() -> None:
    """An answer that begins with the last 300 characters counts, one character more and it does not."""
    answer = "Answer: 42"
    for behind, right in ((0, True), (290, True), (291, False), (300, False)):
        assert dapo.compute_score(answer + "\n" * behind, "42")["acc"] is right
    assert dapo.compute_score(answer + "\n" * 291, "42")["pred"] == dapo.INVALID


@pytest.mark.parametrize(("behind", "pred"), [(90, "42"), (91, None)])
def test_strict_dapo_reads_the_last_hundred_characters(behind: int, pred: str | None) -> None:
    score = dapo.compute_score(r"\boxed{42}" + "x" * behind, "42", strict_box_verify=True)
    assert score == dapo.DapoScore(score=1.0 if pred else -1.0, acc=pred is not None, pred=pred)


@pytest.mark.parametrize(
    ("response", "label", "value"),
    [
        (r"a</think>\boxed{1} b</think>\boxed{2}", "2", 1),
        (r"a</think>\boxed{2} b</think>\boxed{1}", "2", 0),
        (r"###Response \boxed{2}", "2", 1),
        (r"\boxed{2}", "2", 0),
        (r"</think>\boxed{2}", r"\boxed{2}", 1),
        (r"</think>\boxed{\fbox{2}}", r"\fbox{2}", 0),
        (r"</think>\boxed{}", "", 0),
        (r"</think>\boxed{2}", 2, 1),
        ("</think>2", "2", 0),
    ],
)
def test_deepscaler(response: str, label: Any, value: int) -> None:
    assert deepscaler.reward(response, Sample(label=label)) == value


@pytest.mark.parametrize(
    ("response", "label", "value"),
    [
        ("4<|im_end|><|endoftext|>", "4", 1.0),
        ("4 <|im_end|> </s>", "4", 1.0),
        ("<think>a</think>3<think>b</think>4", "4", 1.0),
        ("4", " 4 ", 1.0),
        ("4", 4, 1.0),
        ("4.", "4", 0.0),
    ],
)
def test_exact(response: str, label: Any, value: float) -> None:
    assert exact.reward(response, Sample(label=label)) == value


@pytest.mark.parametrize(
    ("answer", "truth", "value"),
    [
        ("yes", "yes it is", (0.0, 0.0, 0.0)),
        ("yes it is", "yes", (0.0, 0.0, 0.0)),
        ("a fox", "the fox", (1.0, 1.0, 1.0)),
        ("red fox", "fox", (2 / 3, 1 / 2, 1.0)),
        ("go go", "go go go go", (2 / 3, 1.0, 1 / 2)),
        ("Fox!", "fox", (1.0, 1.0, 1.0)),
    ],
)
def test_f1(answer: str, truth: str, value: tuple[float, float, float]) -> None:
    assert f1.f1_score(answer, truth) == pytest.approx(value)


CHOICES = {"choices": ["red fox", "blue whale", "owl"]}


@pytest.mark.parametrize(
    ("response", "label", "about", "value"),
    [
        ("B. the red fox", "A", CHOICES, 0.0),
        ("it is A, no: B", "B", {}, 1.0),
        ("it is B, no: A", "B", {}, 0.0),
        ("so A", 0, CHOICES, 1.0),
        ("so B", 1, CHOICES, 1.0),
        ("A</think> so B", "B", {}, 1.0),
        ("A</think> so", "A", {}, 0.0),
        ("answer: Z, or rather C", "C", CHOICES, 1.0),
        ("it howls", "owl", CHOICES, 0.0),
        ("an owl", "owl", CHOICES, 1.0),
        ("so C", "owl", CHOICES, 1.0),
        ("so b", None, {"correct_letter": "b"}, 0.0),
        ("so B", None, {"correct_letter": "b"}, 1.0),
        ("so Q", "Q", {"valid_letters": ["q", "r"]}, 1.0),
    ],
)
def test_gpqa(response: str, label: Any, about: dict[str, Any], value: float) -> None:
    assert gpqa.compute_gpqa_reward(response, label, about) == value


def test_reasoning_gym_takes_the_last_tagged_answer() -> None:
    assert reasoning_gym.extract_answer("<answer>1</answer> or <answer> 2 </answer>") == "2"
    assert reasoning_gym.extract_answer(r"\boxed{1} or \boxed{ 3 }") == "3"


def test_random_is_another_number_for_another_sample() -> None:
    ids = [{"index": n} for n in range(32)]
    for about in (ids, [{"group_index": n} for n in range(32)], [{"rollout_id": n} for n in range(32)]):
        assert {random_reward.reward("x", Sample(**fields)) for fields in about} == {0, 1}  # type: ignore[arg-type]
