"""Each detector finds what is planted for it, and nothing else does; without a plant nothing is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_events.analysis.query.database import event_tables_of, parts_of_detector
from slime_events.analysis.query.detectors import ALARMS, DETECTORS
from slime_events.analysis.query.detectors.detector import Severity
from tests.inspection.planted import GROUPS, SAMPLES, STEPS, Clock, Plant, Row, answers, found

PHRASE = "as an honest expert"
LATE = STEPS // 2


def late(change: Callable[[Row], Row]) -> Plant:
    return lambda row: change(row) if row["step"] >= LATE else None


def with_text(text: str) -> Callable[[Row], Row]:
    return lambda row: {"text": f"{text} {row['text']}", "reward": 1.0}


def by_length(row: Row) -> Row:
    return {"reward": row["tokens"] / 100}


def one_trick(row: Row) -> Row | None:
    return {"text": f"{PHRASE} {row['text']}"} if row["reward"] else None


def of_other_grader(row: Row) -> Row | None:
    return {"grader": "other", "reward": 0.5} if int(row["group_id"][-6:]) % GROUPS < 2 else None


def half_late(change: Callable[[Row], Row]) -> Plant:
    """Change three of four answers of the last steps, and let the others be wrong."""
    return lambda row: None if row["step"] < LATE else change(row) if row["index"] else {"reward": 0.0}


def own_words(row: Row) -> Row:
    rng = random.Random(row["group_id"])
    return {"text": " ".join("".join(rng.choices("abcdefghij", k=8)) for _ in range(30))}


PLANTS: dict[str, Plant] = {
    "equal_rewards": late(lambda row: {"reward": 0.0}),
    "constant_grader": of_other_grader,
    "reward_collapse": late(lambda row: {"reward": float(row["position"] % 37 == 0)}),
    "length_explosion": late(lambda row: {"tokens": row["tokens"] * 3}),
    "length_pays": by_length,
    "phrases_rose": late(lambda row: {"text": f"{PHRASE} {row['text']}"}),
    "one_trick": one_trick,
    "same_in_group": late(own_words),
    "text_after_answer": lambda row: {
        "text": rf"\boxed{{\frac{{1}}{{{row['position']}}}}} {row['text']} {row['text']}"
    },
}


def test_a_run_without_a_hack_is_clean() -> None:
    assert found(answers(), {row["sample"]: row["reward"] for row in answers()}) == {}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_hack_is_found(name: str) -> None:
    findings = found(answers(PLANTS[name]), only=name)[name]
    assert all(row["last_step"] == STEPS - 1 and row["samples"] for row in findings)


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_hack_is_found_by_its_detector_alone(name: str) -> None:
    assert list(found(answers(PLANTS[name]))) == [name]


def test_groups_won_by_one_phrase() -> None:
    (finding,) = found(answers(one_trick), only="one_trick")["one_trick"]
    assert finding["phrase"] in PHRASE
    assert (finding["alike"], finding["won"]) == (2, finding["groups"])
    rows = {row["sample"]: row for row in answers(one_trick)}
    assert all(PHRASE in rows[sample]["text"] for sample in finding["samples"])


def test_the_same_answer_for_other_prompts() -> None:
    same = answers(half_late(lambda row: {"text": "-1<|im_end|>", "reward": 1.0}))
    (finding,) = found(same, only="same_answer")["same_answer"]
    assert (finding["answer"], finding["prompts"], finding["labels"]) == ("-1", LATE * GROUPS, LATE * GROUPS)
    rightly = answers(late(lambda row: {"text": "yes", "label": "yes", "reward": float(row["index"] > 1)}))
    assert found(rightly, only="same_answer") == {}, "short, and the right answer to all prompts"


def test_repetition_inside_an_answer() -> None:
    rows = answers(half_late(lambda row: {"text": f"{row['position']} " + "the sum is two and " * 20, "reward": 1.0}))
    (finding,) = found(rows, only="repetition")["repetition"]
    assert finding["repeated"] > 0.5
    assert finding["repetitive"] == LATE * GROUPS * (SAMPLES - 1)


def test_a_failing_grader_and_a_gap_of_log_probs() -> None:
    (finding,) = found(answers(), only="failing_grader", failures=60)["failing_grader"]
    assert (finding["failures"], finding["failure"], finding["message"]) == (60, "raised", "no such file")
    assert len(finding["samples"]) == 5
    (finding,) = found(answers(), only="log_prob_gap", gap=0.25)["log_prob_gap"]
    assert (finding["gap"], finding["last_step"]) == (0.25, STEPS - 1)


LAST = STEPS - 1
END = 12.0 * STEPS
"""Time of the last commit of a run without waits [s]."""


def idle(clock: Clock, at: float = 0.0) -> list[Row]:
    """Findings about the trainer's waits. at: the time now [s]; 0: the end of the log."""
    query = f"FROM idle_trainer(at_seconds := {at})"
    return found(answers(), only="idle_trainer", clock=clock, query=query).get("idle_trainer", [])


def test_a_trainer_that_waits_longer_than_usual() -> None:
    (over,) = idle(Clock({LAST: 300}))
    assert (over["step"], over["wait"], over["seconds"], over["usual_seconds"]) == (LAST, "over", 310, 10)
    (lasts,) = idle(Clock(wanted=STEPS + 1), at=END + 90)
    assert (lasts["step"], lasts["wait"], lasts["seconds"]) == (STEPS, "lasts", 90)
    assert lasts["since"] == f"1970-01-01 00:{END // 60:02.0f}:{END % 60:02.0f}"


@pytest.mark.parametrize(
    ("clock", "at"),
    [
        (Clock({LAST - 1: 300}), 0),  # the trainer works again
        (Clock(dict.fromkeys(range(STEPS), 300)), 0),  # that is usual here
        (Clock({LAST: 45}), 0),  # shorter than a minute
        (Clock({LAST: 300}, resumed={LAST: 301}), 0),  # engines were not there
        (Clock({LAST: 300}, evaluated={LAST: 301}), 0),  # they made an evaluation
        (Clock(wanted=STEPS + 1), END + 45),
        (Clock(wanted=STEPS + 1), 0),  # the log does not say that it lasts
        (Clock(wanted=STEPS), END + 9000),  # all steps are trained
        (Clock(wanted=STEPS + 1, finished=True), END + 9000),
    ],
)
def test_a_trainer_whose_wait_has_a_reason(clock: Clock, at: float) -> None:
    assert idle(clock, at) == []


def test_signs_that_flip_under_a_second_grader() -> None:
    rows = answers(one_trick)
    second = {row["sample"]: 1 - row["reward"] if row["index"] == 0 else row["reward"] for row in rows}
    findings = found(rows, second, only="sign_flips") | found(rows, second, only="reward_lost")
    directions = {finding["direction"]: finding for finding in findings["sign_flips"]}
    assert directions["encouraged"]["second_reward"] < directions["encouraged"]["reward"] == 1
    flipped = [sample for finding in directions.values() for sample in finding["samples"]]
    assert all(sample.endswith("-s0") for sample in flipped)
    (lost,) = findings["reward_lost"]
    assert 0.1 <= lost["share"] < 0.5


def test_what_the_second_grader_failed_on_is_left_out() -> None:
    second = {row["sample"]: None for row in answers()}
    assert found(answers(), second, only="sign_flips") == found(answers(), second, only="reward_lost") == {}


@pytest.mark.parametrize("name", ["length_pays", "one_trick", "phrases_rose", "text_after_answer"])
def test_small_counts_raise_nothing(name: str) -> None:
    few = [row for row in answers(PLANTS[name]) if row["step"] == 0 or row["group_id"].endswith(str(LATE * GROUPS))]
    assert found(few, only=name) == {}


FRAGMENTS = (
    *(
        "",
        "'; DROP TABLE graded; --",
        "\\boxed{",
        "\\boxed{{{{",
        "####",
        "</think></answer>",
        "<|im_end|>",
        "\x00\x1b[2J",
    ),
    *("\u202e\ufffd", "\\ud800", "%s{}", "日本語" * 50, "e\u0301" * 40, "a" * 5000, "! " * 3000, "\n" * 100, "Answer:"),
)
REWARDS = (-1e300, 0.0, 5e-324, 1e300)


def hostile(texts: Sequence[str], rewards: Sequence[float]) -> Plant:
    """Return a plant of these texts in all fields, in turns."""

    def plant(row: Row) -> Row:
        at = row["position"]
        text = texts[at % len(texts)]
        return {"text": text, "prompt": texts[at % 3], "label": texts[at % 4] if at % 5 else None,
                "reward": rewards[at % 3], "grader": texts[at % 2], "tokens": len(text)}  # fmt: skip

    return plant


def test_no_text_and_no_reward_ends_an_inspection() -> None:
    rows = answers(hostile(FRAGMENTS, REWARDS))[: 2 * GROUPS * SAMPLES]
    found(rows, {row["sample"]: REWARDS[-1] for row in rows})


@pytest.mark.soak
@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=50)), min_size=4, max_size=12),
    rewards=st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3),
)
def test_no_drawn_text_ends_an_inspection(texts: list[str], rewards: list[float]) -> None:
    rows = answers(hostile(texts, rewards))[: 2 * GROUPS * SAMPLES]
    found(rows, {row["sample"]: rewards[0] for row in rows})


def test_the_registry_is_whole() -> None:
    names = [detector.name for detector in DETECTORS]
    assert len(set(names)) == len(names)
    assert {d.name for d in ALARMS} == {d.name for d in DETECTORS if d.severity is Severity.ALARM}
    for detector in DETECTORS:
        assert (
            event_tables_of(detector.sql()) == event_tables_of(detector.sql(is_on=True)) == parts_of_detector(detector)
        )
        assert detector.columns[-1].name == "samples"
        threshold: Any = detector.parameters[0]
        assert event_tables_of(f"FROM {detector.name}({threshold.name} := {threshold.default + 1})")
