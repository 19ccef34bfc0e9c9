"""slime's `rm_hub` as its users import it: the names, what they return, and who grades what."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UnknownGrader
from slime_events.plugins.rewards import dapo, math
from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.slime import grader_helpers
from slime_events.plugins.rewards.slime.rm_hub import async_rm, batched_async_rm, remote_rm
from slime_events.plugins.sample import Sample


def args(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"rm_type": None, "custom_rm_path": None, **fields})


def grade(sample: Sample, **fields: Any) -> Any:
    return asyncio.run(async_rm(args(**fields), sample))


def test_user_files_import_the_names_in_a_process_of_their_own() -> None:
    program = (
        "from slime_events.plugins.slime.aliases import install_slime_aliases\n"
        "install_slime_aliases()\n"
        "from slime.rollout.rm_hub import async_rm, extract_boxed_answer, grade_answer_verl\n"
        "from slime.rollout.rm_hub import get_deepscaler_rule_based_reward as whole\n"
        "from slime.rollout.rm_hub.deepscaler import get_deepscaler_rule_based_reward as part\n"
        "import slime.rollout.rm_hub.gpqa as gpqa\n"
        "assert whole is part and callable(async_rm) and gpqa.DEFAULT_VALID_LETTERS[9] == 'J'\n"
        "assert grade_answer_verl('so ' + chr(92) + 'boxed{25}', '25')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("response", "label", "rm_type", "value"),
    [
        (r"\boxed{1}", "1", " math ", 1),
        (r"x</think>\boxed{1}", "1", "deepscaler", 1),
        ("Answer: 7", "7", "dapo", {"score": 1.0, "acc": True, "pred": "7"}),
        ("brown fox", "a quick brown fox", "f1", 0.8),
        ("The answer is C", "C", "gpqa", 1.0),
        (r"so \boxed{C}", "C", "boxed_gpqa", 1.0),
    ],
)
def test_async_rm_returns_what_the_grader_returns(response: str, label: str, rm_type: str, value: Any) -> None:
    assert grade(Sample(response=response, label=label), rm_type=rm_type) == value
    named = Sample(response=response, label=label, metadata={"rm_type": rm_type})
    assert grade(named, rm_type="random") == value


@pytest.mark.parametrize("rm_type", [None, "nope", "boxed_"])
def test_async_rm_without_a_grader_raises_as_slime_does(rm_type: str | None) -> None:
    with pytest.raises(UnknownGrader) as raised:
        grade(Sample(), rm_type=rm_type)
    assert isinstance(raised.value, NotImplementedError)


def test_a_sample_s_own_function_goes_first_then_the_run_s(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub_own.py").write_text(
        "async def one(args, sample, extra=0): return {'own': args.rm_type, 'extra': extra}\n"
        "def plain(args, sample): return 3\n"
        "async def many(args, samples): return [len(samples)] * len(samples)\n"
    )
    own = Sample(custom_rm_path="hub_own.py:one")
    both = args(rm_type="math", custom_rm_path="hub_own.py:plain")
    assert asyncio.run(async_rm(both, own, extra=2)) == {"own": "math", "extra": 2}
    assert asyncio.run(async_rm(both, Sample())) == 3
    assert asyncio.run(batched_async_rm(args(custom_rm_path="hub_own.py:many"), [Sample(), Sample()])) == [2, 2]
    graded = [Sample(response=r"\boxed{1}", label="1"), Sample(response=r"\boxed{2}", label="1")]
    assert asyncio.run(batched_async_rm(args(rm_type="math"), graded)) == [1, 0]


async def test_remote_rm_gives_the_judge_s_answer_as_it_is() -> None:
    questions = []

    async def judge(request: web.Request) -> web.Response:
        questions.append(await request.json())
        return web.json_response({"score": 0.5}, status=200 if questions[-1]["label"] else 400)

    app = web.Application()
    app.router.add_post("/", judge)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        sample = Sample(prompt="p", response="r", label="l")
        assert await async_rm(args(rm_type="remote_rm", rm_url=url), sample) == {"score": 0.5}
        assert questions == [{"prompt": "p", "response": "r", "label": "l"}]
        with pytest.raises(RuntimeError, match="400"):
            await remote_rm(args(rm_type="remote_rm", rm_url=url), Sample(prompt="p"))
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("text", "box", "strict", "inner"),
    [
        (r"a \boxed{1}, b \boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} \boxed 2", None, r"\boxed{1}", None),
        (r"\boxed 2 and {3}", r"\boxed 2 and {3}", None, None),
        (r"so \fbox{7}", r"\fbox{7}", None, None),
        (r"\boxed{open", None, None, None),
        ("none", None, None, None),
        ("", None, None, None),
    ],
)
def test_boxes(text: str, box: str | None, strict: str | None, inner: str | None) -> None:
    assert grader_helpers.last_box_or_fbox(text) == box
    assert grader_helpers.last_box(text) == strict
    assert grader_helpers.inside_box_or_none(box) == inner == last_boxed(text)


def test_the_inside_of_what_is_no_box_is_an_error_for_dapo_only() -> None:
    assert grader_helpers.inside_box_or_none("not boxed") is None
    with pytest.raises(AssertionError, match="box error"):
        grader_helpers.inside_box("not boxed")


@given(st.text(alphabet="boxed{}\\1f ", max_size=40))
def test_the_steps_of_taking_a_box_apart_agree_with_the_grader_s(text: str) -> None:
    if r"\boxed" in text:
        assert grader_helpers.inside_box_or_none(grader_helpers.last_box_or_fbox(text)) == last_boxed(text)


@given(st.text(alphabet="answer: 1234.$\\boxed{}\n", max_size=60), st.booleans())
def test_dapo_by_its_helpers_is_dapo(text: str, strict: bool) -> None:
    assert grader_helpers.compute_score(text, "12", strict) == dapo.compute_score(text, "12", strict)


def test_slime_s_users_may_name_the_arguments() -> None:
    h = grader_helpers
    assert h.extract_answer(passage=r"\boxed{4}") == h.extract_boxed_answer(solution=r"\boxed{4}") == "4"
    assert h.grade_answer_verl(solution_str=r"\boxed{4}", ground_truth=4)
    assert h.grade_answer_mathd(given_answer=".5", ground_truth=r"\frac12")
    assert h.grade_answer_sympy(given_answer="x+1", ground_truth="1+x")
    assert h.f1_score(prediction="a fox", ground_truth="fox") == (1.0, 1.0, 1.0)
    assert h.normalize_final_answer(final_answer="x = 1,234") == "1234"
    assert h.compute_score(solution_str="Answer: 4", ground_truth="4")["score"] == 1.0
    assert h.verify(solution_str="Answer: 5", answer="4") == (False, "5")


def test_dapo_s_helpers() -> None:
    two = "Answer: 41\nAnswer: 42"
    assert grader_helpers.is_correct_minerva(two, r"\boxed{42}", gt_need_extract=True) == (True, "42")
    assert grader_helpers.is_correct_minerva("result 42", "42", answer_pattern=r"result (\d+)") == (True, "42")
    assert grader_helpers.is_correct_strict_box(r"\boxed{42}", "42") == (1, "42")
    assert grader_helpers.is_correct_strict_box(r"\boxed{42}" + "x" * 200, "42") == (-1, None)
    paused = r"\boxed{42}" + "x" * 200
    assert grader_helpers.is_correct_strict_box(paused, "42", [0, 0, 0, 100]) == (1, "42")
    with pytest.raises(AssertionError):
        grader_helpers.is_correct_strict_box(paused, "42", [1])


def test_math_s_helpers() -> None:
    assert grader_helpers.normalized(None) is None
    assert grader_helpers.normalized(r"\text{Yes}") == "yes"
    assert [grader_helpers.is_float(text) for text in ("1.5", "x", "")] == [True, False, False]
    assert [grader_helpers.is_whole(number) for number in (2.0, 2.5, float("inf"), float("nan"))] == [True] + [
        False
    ] * 3
    assert grader_helpers.to_int("1,234.0") == 1234
    assert grader_helpers.with_mixed_numbers("7 3/4") == "7+3/4"
    assert grader_helpers.unknown_letters("sqrt(x)+frac y+x") == 2
    assert grader_helpers.may_be_parsed("x+y")
    assert not any(map(grader_helpers.may_be_parsed, ("x+y+z", "2^{3}", "2^33", "2^3^4")))
    assert str(grader_helpers.parsed("2^3 x")) == "8*x"
    assert math._elements("(1, 2,345)") == ["1", "2345"]


def test_gpqa_s_helpers() -> None:
    letters = grader_helpers.DEFAULT_VALID_LETTERS
    assert grader_helpers.extract_letter("Answer: A is wrong.</think>The answer is B.", letters) == "B"
    assert grader_helpers.extract_letter("Answer: C, no wait B.", ["a", "b"]) == "B"
    assert grader_helpers.extract_letter(None, letters) is None
