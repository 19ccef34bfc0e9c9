"""The text of a model as an expression: what sympy would make of it, and nothing is ever called for it."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sympy.parsing import sympy_parser

from slime_events.plugins.rewards import math, reasoning_gym
from slime_events.plugins.rewards.expression import NoExpression, evaluate, expression
from slime_events.plugins.sample import Sample

ATTACKS = (
    *("__import__('os').system('touch pwned')", "().__class__", "x.__class__", "(1).__class__.__bases__[0]", "exit()"),
    *("open('pwned','w')", "eval('1')", "exec('import os')", "getattr(x,'y')", "lambda: x", "(lambda x: x)(1)"),
    *("[x for x in (1,2)]", "[x][0]", "{1:2}", "x if x else x", "x:=1", "f'{x}'", "'a'", "sqrt('x.__class__')"),
    *("Symbol('x').__class__", "0x1.n()", "x2.n()", "1.5.real", "x.n", "sympify('exit()')", "Lambda(x,x)"),
    *("parse_expr('exit()')", "lambdify(x,x)", "sqrt(x,evaluate=0)", "sqrt(*x)", "x@x", "x//2", "x%2", "x<2", "x==x"),
    *("1 or 2", "not x", "x and x", "1,2", "id(1)", "all(x)", "Poly(x)", "test()", "source(sqrt)", "…", "²"),
    *("１.__class__", "𝐞𝐱𝐢𝐭()", "𝐞𝐱𝐢𝐭.𝐚", "1)\n(1", "x;x", "x\nx", "import os", "#", ""),
    *("preview(x)", "S('exit()')", "(" * 5000, "-" * 100_000 + "1"),
)
BOMBS = (
    *("9**9**9**9", "9**9**9", "9**(9**9)", "2**-999999999", "1**999999999", "2**2e9", "9.5**9e99", "1e999999999"),
    *("(((((((9**9)**9)**9)**9)**9)**9)**9)**9", "(9!)!", "9!!!!!", "999999999!", "999999999!!", "2**(9!!*9!!*9!!)"),
    *("9**sqrt(10000000000000000000000000000)", "ff(9,999999999)", "x**9**9**9", "(1/9)**999999999", "1e-999999999"),
)

_did: list[str] = []
_watched = False
_WRITES = re.compile("[wax+]")


def _notice(event: str, args: tuple[Any, ...]) -> None:
    if not _watched or event == "os.listdir" or (event == "open" and not _WRITES.search(str(args[1] or "r"))):
        return
    if event not in ("exec", "open") and not event.startswith(("os.", "subprocess.", "socket.", "shutil.", "ctypes.")):
        return
    callers = list(_callers())
    if callers[0] in ("_build", "parse_expr") or "_find_and_load" in callers:
        return  # code of sympy's own: of polynomials in n symbols, `from sympy import *`, a late import
    _did.append(f"{event} {args} in {callers[:6]}")


def _callers() -> Iterator[str]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]


@pytest.fixture(scope="module")
def audit() -> None:
    sys.addaudithook(_notice)


@contextlib.contextmanager
def nothing_done() -> Iterator[None]:
    """No code is run that a text holds, no file is written, no process started."""
    global _watched
    _did.clear()
    _watched = True
    try:
        yield
    finally:
        _watched = False
    assert not _did


def test_the_watch_sees_what_parse_expr_does(audit: None) -> None:
    with pytest.raises(AssertionError), nothing_done():
        sympy_parser.parse_expr("x+1")


@pytest.mark.parametrize("text", [*ATTACKS, *BOMBS])
def test_an_attack_is_no_expression(audit: None, text: str) -> None:
    with nothing_done():
        with contextlib.suppress(Exception):
            assert isinstance(expression(text), sympy.Expr), "of symbols and numbers, such as exit() read as e*x*i*t*()"
        assert math.grade_answer_sympy(text, "x+1") is False
        assert math.grade_answer_sympy("x+1", text) is False


@given(st.text(alphabet=st.sampled_from("x y1290.()[]{}'\"_+-*/^!,:=<>|&~@%;\\\nsqrtlnpioeλ∞²if")))
def test_no_text_makes_it_do_anything(audit: None, text: str) -> None:
    with nothing_done():
        assert math.grade_answer_sympy(text, "x+1/2") in (True, False)


@given(st.text(max_size=40))
def test_nor_does_any_other_text(audit: None, text: str) -> None:
    with nothing_done(), contextlib.suppress(Exception):
        expression(text)


ODD = st.sampled_from(["0.5", "2.25", ".5", "1.", "1e3", "2e-3", "3!", "4!!"])
NUMBERS = st.one_of(st.integers(0, 99).map(str), ODD)
ATOMS = st.one_of(NUMBERS, st.sampled_from([*"xynλ", "pi", "oo", "xy", "x2", "theta", "2x", "3pi", "e", "i", "2j"]))


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    function = st.sampled_from(["sqrt", "ln", "re", "frac", "li", "f", "x", "sin", "exp", "abs", "Abs"])
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", ""]), inner)
    power = st.tuples(inner, st.sampled_from(["2", "3", "-1", "x", "0.5", "pi"]))
    return st.one_of(
        binary.map(lambda three: "(" + "".join(three) + ")"),
        power.map(lambda two: f"({two[0]})**{two[1]}"),
        st.tuples(function, inner).map(lambda two: f"{two[0]}({two[1]})"),
        inner.map("-{}".format),
    )


@given(st.recursive(ATOMS, _grown, max_leaves=6))
def test_what_an_answer_may_hold_is_what_parse_expr_makes_of_it(text: str) -> None:
    transformations = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)
    try:
        theirs = sympy_parser.parse_expr(text, transformations=transformations)
    except Exception:
        theirs = None
    try:
        ours = expression(text)
    except Exception:
        ours = None
    assert ours == theirs or (ours is None and "abs" in text), f"{text}: {ours}, not {theirs}"


def test_what_is_large_and_harmless_is_computed() -> None:
    assert expression("x**2023") == sympy.Symbol("x") ** 2023
    assert expression("2**65000") == 2**65_000
    assert expression("2023!/2022!") == 2023
    assert expression("1e300") == sympy.Float("1e300")


def test_names_of_the_caller_go_before_sympy_s() -> None:
    assert evaluate("C*Integer(2)", {"C": sympy.Symbol("C")}) == 2 * sympy.Symbol("C")
    with pytest.raises(NoExpression):
        evaluate("C*Integer(2)", {"C": open})
    with pytest.raises(NoExpression):
        evaluate("C(2)", {"C": open})


def gym(name: str, answer: str, right: Any, **metadata: Any) -> float:
    entry = {"question": "", "answer": right, "metadata": {"source_dataset": name, **metadata}}
    return reasoning_gym.reward(f"<answer>{answer}</answer>", Sample(metadata={"entry": entry}))


def test_the_scorers_of_reasoning_gym_evaluate_nothing(audit: None, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    attack = "__import__('os').system('touch pwned')"
    numbers = {"numbers": [1, 2, 3, 4], "target": 24, "variable": "x", "integrand": "x", "valid_answers": []}
    gym("countdown", "1*2", "24", **numbers)  # imports all of it
    for name in ("countdown", "puzzle24", "simple_integration", "intermediate_integration", *reasoning_gym._LISTS):
        with nothing_done():
            assert gym(name, attack, "24", **numbers) < 0.1, name
    with nothing_done():
        assert gym("polynomial_multiplication", attack, "x") == 0.0
    assert not (tmp_path / "pwned").exists()


def test_the_scorers_of_reasoning_gym_score_as_before() -> None:
    numbers = {"numbers": [1, 2, 3, 4], "target": 24, "variable": "x", "integrand": "x*cos(x)"}
    assert gym("countdown", "1*2*3*4", "24", **numbers) == 1.0
    assert gym("countdown", "4*(3+(2+1))", "24", **numbers) == 1.0
    assert gym("countdown", "1+2+3+4", "24", **numbers) == 0.05
    assert gym("simple_integration", "x*sin(x)+cos(x)+C", "", **numbers) == 1.0
    assert gym("intermediate_integration", "x*sin(x)+cos(x)+C", "", **numbers) == 1.0
    assert gym("intermediate_integration", "integrate(x*cos(x),x)", "", **numbers) == 0.0
    assert gym("polynomial_multiplication", "x**2 + 2*x*y + y**2", "x**2 + y**2 + 2*x*y") == 1.0
    assert gym("string_insertion", "['A', 'B']", "AB") == 0.1
    assert gym("spiral_matrix", "[1, 2]", "1 2") == 0.1
    assert gym("binary_matrix", "[[0, 1], [1, 0]]", "0 1\n1 0") == 0.1
    assert sympy_parser.eval_expr is not evaluate


def test_every_scorer_that_evaluates_is_known() -> None:
    """Another version of reasoning_gym may evaluate more: look whether it is the answer, and add it to `_LISTS`."""
    spec = find_spec("reasoning_gym")
    assert spec is not None
    assert spec.origin is not None
    scorers = {}
    for path in Path(spec.origin).parent.rglob("*.py"):
        scoring = re.findall(r"def score_answer\(.*?(?=\n    def |\nclass |\Z)", path.read_text(), re.DOTALL)
        if any(re.search(r"(?<![\w.])(eval|exec|compile)\(", text) for text in scoring):
            scorers[path.stem] = path
    assert set(scorers) == {*reasoning_gym._LISTS, "number_sorting"}, (
        "number_sorting evaluates the data set's own answer"
    )
