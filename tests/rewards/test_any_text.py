"""Test the time of graders over texts of 50,000 characters: no pattern's time grows with the square of a text.

The bound is several times what a single pass takes; what tries every pair of places in such a text takes a quarter of a
minute.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.plugins import rewards, sample
from slime_events.plugins.rewards import dapo, gpqa, mathd, reasoning_gym
from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.ifbench.grader import CHECKS
from slime_events.plugins.rewards.ifbench.layout import _LETTERS
from slime_events.plugins.rewards.ifbench.text import _CLITIC
from slime_events.plugins.rewards.registry import BOXED, GRADERS, built_in
from slime_events.plugins.rewards.slime import grader_helpers
from slime_events.plugins.sample import Sample

SIZE = 50_000
BOUND_S = 1.0
"""Seconds of CPU: others may have the cores."""
PARSERS = {
    "deepscaler": "sympy and pylatexenc",
    "math": "sympy and pylatexenc",
    "math-verify": "its library, sympy and ANTLR",
    "reasoning_gym": "the scorer of each generator",
}
"""Graders that give a text to the parser of another package, and which: how long that takes is not in our hands. Their
processes are ended at --rm-timeout (`test_pool.py`); their own patterns are in `patterns()`."""
PIECES = (
    *(" ", "\n", "\t", "(", ")", "{", "}", "\\", "$", "^", ",", "-", ".", "=", "!", '"', "'", "/", "*", "<", ":"),
    *("0", "a", "A", "é", "1,", "1,234", "1 ", "1 1 ", "-1", "a ", "I is ", "A is the ", ", ", "^ ", "- ", ",\\! "),
    *("answer", "answer:", "answer is ", "Answer : ", "final answer ", "option\n", "correct ", "is the correct "),
    *("\\boxed{", "\\boxed", "\\text{", "\\text{ ", "\\textbf{", "\\overline{", "\\frac", "\\sqrt", "\\frac{", "frac"),
    *(
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<i>",
        "<em>",
        "</s>",
        "<|im_end|>",
        "<|",
        "|>",
        "<｜",
        "###Response",
    ),
    *(
        "Question 1",
        "A) ",
        "a.b",
        "a'",
        "n't",
        "don't ",
        "a-",
        "e.g. ",
        "Mr. ",
        "x. ",
        "?!",
        '"a ',
        '"! ',
        "abc ",
        "degrees ^",
    ),
    *(
        "the ",
        "a an the ",
        "yes ",
        "cm ",
        "million",
        "or ",
        "and ",
        "1/2",
        "[1,",
        "(1,2)",
        "0.",
        "1e5",
        "«",
        "\x00",
        "\ud83d",
    ),
)
ENDS = ("", "x", "}", "$", "?", '"', "\\", "answer", "A", "\n", "</think>")
STARTS = ("", "\\boxed{", "answer", "final answer is", "</think>", '"', "A", "^", "1", "<answer>", "\\text{", "Answer:")


def shapes(every: int = 1) -> Iterator[str]:
    """Texts of SIZE characters, each of one piece again and again, with something ahead of it and behind it; runs of
    blanks with everything that may stand ahead of them. every: use one piece of this number.
    """
    for number, piece in enumerate(PIECES[::every]):
        body = piece * (SIZE // len(piece))
        yield STARTS[number % len(STARTS)] + body + ENDS[number % len(ENDS)]
    for blank in " \n":
        yield from (start + blank * SIZE for start in STARTS)
    yield "(" * (SIZE // 2) + ")" * (SIZE // 2)
    yield "\\boxed{" + "{" * (SIZE // 2) + "}" * (SIZE // 2)


class _TooLong(BaseException):
    """Raise no Exception: graders and these tests continue after those."""


@contextlib.contextmanager
def bounded(what: str) -> Iterator[None]:
    """Fails when the block takes longer; also inside of a pattern, which asks for signals on its way."""

    def late(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    usual = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, BOUND_S)
    try:
        yield
    except _TooLong:
        raise AssertionError(f"{what} takes longer than {BOUND_S:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, usual)


def modules() -> list[ModuleType]:
    """All files of graders, and that of `Sample`, which takes an answer out of a response."""
    names = [module.name for module in pkgutil.walk_packages(rewards.__path__, f"{rewards.__name__}.")]
    return [sample, *map(importlib.import_module, names)]


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    """Every pattern that a module has compiled, or gives as a literal to a function of `re`; read once for all."""
    by_name = {
        f"{module.__name__}: {pattern.pattern}": pattern
        for module in modules()
        for pattern in _in(vars(module).values())
    }
    for module in modules():
        tree = ast.parse(Path(str(module.__file__)).read_text())
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[ast.Constant(value=str() as it), *_]):
                    by_name.setdefault(f"{module.__name__}: {it}", re.compile(it))
    return by_name


AT_ONE_PLACE = {_LETTERS.pattern, _CLITIC.pattern, r'\s*".*"\s*'}
"""Patterns that are tried at the beginning of a text alone: they would grow with the square where they are searched."""


def _in(values: Any) -> Iterator[re.Pattern[str]]:
    for value in values:
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, tuple | list):
            yield from _in(value)


def test_patterns_are_found() -> None:
    texts = {name.partition(": ")[2] for name in patterns()}
    assert {gpqa._STANDALONE.pattern, mathd.TEXT.pattern, r",\\! *", "mile(es)?(s)? *(\\^[0-9]+)?"} <= texts
    assert len(texts) > 40


@pytest.mark.parametrize("name", sorted(patterns()))
def test_pattern(name: str) -> None:
    pattern = patterns()[name]
    use = pattern.match if pattern.pattern in AT_ONE_PLACE else pattern.findall
    for text in shapes(2):
        with bounded(f"{name} over {text[:24]!r} ... {text[-8:]!r}"):
            use(text)
            pattern.fullmatch(text)


def test_the_bound_notices_a_pattern_that_grows_with_the_square() -> None:
    began = time.process_time()
    with pytest.raises(AssertionError, match="takes longer"), bounded("two runs of blanks side by side"):
        re.compile(r"answer\s*\s*([A-Z])").search("answer" + " " * (SIZE * 4))
    assert time.process_time() - began < 10 * BOUND_S


DOORS: dict[str, Callable[[str], object]] = {
    **{
        name: lambda text, name=name: built_in(name).function(None, Sample(response=text, label="7"))  # type: ignore[misc]
        for name in [
            *sorted(GRADERS.keys() - PARSERS.keys() - {"ifbench"}),
            *(f"{BOXED}{name}" for name in ("exact", "f1", "gpqa", "dapo")),
        ]
    },
    "gpqa, words": lambda text: gpqa.compute_gpqa_reward(text, "red fox", {"choices": ["red fox", "owl"]}),
    "gpqa, label": lambda text: gpqa.compute_gpqa_reward("so A", text, {"choices": [text, "owl"]}),
    "gpqa, letters": lambda text: gpqa.compute_gpqa_reward("A " * 1000, "owl", {"valid_letters": list(text)}),
    "f1, label": lambda text: built_in("f1").function(None, Sample(response="a fox", label=text)),
    "dapo, spelling": dapo.normalize_final_answer,
    "dapo, strict": lambda text: dapo.compute_score(text, text, strict_box_verify=True),
    "minerva": lambda text: grader_helpers.is_correct_minerva(text, "7"),
    "last box": last_boxed,
    "slime's box": grader_helpers.last_box_or_fbox,
    "spelling": lambda text: mathd.grade_answer_mathd(text, "7"),
    "a tagged answer": reasoning_gym.extract_answer,
    "answer_of": sample.answer_of,
    "math without a box": lambda text: built_in("math").function(
        None, Sample(response=text.replace("b", "d"), label="7")
    ),
}
"""What takes a text from outside, by one argument."""


@pytest.mark.parametrize("door", list(DOORS))
def test_door(door: str) -> None:
    for text in shapes():
        with bounded(f"{door} over {text[:24]!r} ... {text[-8:]!r}"), contextlib.suppress(Exception):
            DOORS[door](text)


ARGUMENTS = {"str": "owl", "int": 3}
HEADS = {"custom:csv_special_character": "ProductID,Category,Brand,Price,Stock\n" + "1,a,b,2,3\n" * 13 + '1,a,b,2,"'}
"""What has to stand ahead of a text, so that it is looked at."""


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_instruction(name: str) -> None:
    parameters = list(inspect.signature(CHECKS[name]).parameters.values())[1:]
    arguments = {parameter.name: ARGUMENTS[str(parameter.annotation)] for parameter in parameters}
    own = HEADS.get(name, "")
    for text in (*shapes(3), *(own + piece * (SIZE // len(piece)) for piece in ("\n", " ", "<i>", '"', "!"))):
        with bounded(f"{name} over {text[:24]!r} ... {text[-8:]!r}"), contextlib.suppress(Exception):
            CHECKS[name](text, **arguments)


LATEX = st.text(alphabet="ab1 $\\{}\n", max_size=24)
DRESSED = st.lists(st.sampled_from([r"\text{", r"\textbf{", r"\overline{", r"\boxed{", "}", "$", "\n", "x", "1"])).map(
    "".join
)
SLIMES = (
    (r".*?\$(.*?)\$.*", r"$\1$"),
    (r"\\text\{(.*?)\}", r"\1"),
    (r"\\textbf\{(.*?)\}", r"\1"),
    (r"\\overline\{(.*?)\}", r"\1"),
    (r"\\boxed\{(.*)\}", r"\1"),
)


@given(LATEX | DRESSED)
def test_dapo_undresses_as_slime_s_patterns_do(text: str) -> None:
    expected = text
    for pattern, replacement in SLIMES:
        expected = re.sub(pattern, replacement, expected)
    assert dapo._undressed_all(text) == expected


NAMED = (
    r"(?:answer|option|choice)\s*(?:is|:)?\s*([A-Z])",
    r"([A-Z])\s*(?:is\s*(?:the)?\s*correct)",
    r"final\s*(?:answer|option)\s*(?:is|:)?\s*([A-Z])",
)


@given(
    st.lists(st.sampled_from(["answer", "final", "choice", "is", "the", "correct", ":", " ", "\n", "A", "b", "."])).map(
        "".join
    )
)
def test_gpqa_reads_as_slime_s_patterns_do(text: str) -> None:
    for ours, theirs in zip(gpqa._NAMED, NAMED, strict=True):
        match, other = ours.search(text), re.search(theirs, text, re.IGNORECASE)
        assert (match and (match.span(), match[1])) == (other and (other.span(), other[1]))


@given(
    st.lists(st.sampled_from(["<answer>", "</answer>", "<i>", "</i>", "<em>", "</em>", "x", " ", "\n"])).map("".join)
)
def test_tags_are_read_as_by_patterns(text: str) -> None:
    tagged = re.findall("<answer>(.*?)</answer>", text, re.DOTALL)
    assert reasoning_gym._last_tagged(text) == (tagged[-1] if tagged else None)
    italics = re.search(r"<(i|em)>(.*?)</\1>(.*)", text, re.DOTALL)
    assert CHECKS["format:thesis"](text) == bool(italics and italics[2].strip() and italics[3].strip())
