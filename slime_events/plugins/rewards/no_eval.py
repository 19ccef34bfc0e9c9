"""`without_eval`: a safe parser for scorers of `reasoning_gym` that pass a part of a prompt to `eval`.

`bitwise_arithmetic` evaluates the problem in the prompt's metadata, `number_sorting` the answer. Prompts come from
outside, so that anyone's code could run.
"""

import ast
import functools
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
MOST_BITS = 1 << 16
"""Maximum size of a number in the computation: a shift by a billion is a gigabyte."""


def read(text: str, *_: object) -> object:
    """Replace `eval`: return a literal, or the result of arithmetic. Raises ValueError for anything else."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError, ArithmeticError) as error:
        raise ValueError(f"neither a literal nor arithmetic: {error}") from error


def _value(node: ast.expr) -> object:
    match node:
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _applied(node.op, _number(node.left), _number(node.right))
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_number(node.operand))
    return ast.literal_eval(node)


def _number(node: ast.expr) -> int | float:
    value = _value(node)
    if not isinstance(value, int | float):
        raise ValueError(f"{type(value).__name__} is not a number")
    return value


def _applied(kind: ast.operator, left: int | float, right: int | float) -> object:
    bits = [value.bit_length() if isinstance(value, int) else 64 for value in (left, right)]
    if isinstance(kind, ast.LShift):
        bits = [bits[0], int(right)]
    if sum(bits) > MOST_BITS:
        raise ValueError("the number is too large")
    return _OPERATORS[type(kind)](left, right)


@functools.cache
def without_eval() -> None:
    """Replace `eval` and `exec` in every module of the package. No scorer needs `exec`."""
    import reasoning_gym  # late: takes 1 s, since it imports all of its data sets

    for name, module in list(sys.modules.items()):
        if name.startswith(f"{reasoning_gym.__name__}."):
            vars(module).update(eval=read, exec=_refused)


def _refused(*_: object) -> None:
    raise ValueError("a scorer may not run code")
