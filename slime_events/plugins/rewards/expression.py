"""A text as a sympy expression, by our own interpreter: sympy's `parse_expr` passes the text to `eval`.

sympy's transformations read the text (implicit products, factorials, names that are split into letters). Their result
is Python source. The syntax tree of that source is computed here, if it holds only numbers, symbols, arithmetic and
mathematical functions: no attribute, index, text, lambda or other call, and no power of more than `BITS` bits.
"""

from __future__ import annotations

import ast
import builtins
import functools
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sympy

BITS = 1 << 17
"""Maximum size of a power: 10,000! has that size. For 9^9^9 Python needs hours, and all of the memory."""
LARGEST = 10_000
"""Largest argument of a factorial and similar functions, and largest decimal exponent of a number."""

_OPERATORS: Mapping[type, Any] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.UAdd: operator.pos, ast.USub: operator.neg},
}
_MADE_OF_TEXT = {name: name for name in ("Symbol", "Function", "Integer", "Float")} | {"Number": "Integer"}
"""sympy's functions around names and numbers. `Number` would evaluate its text: it becomes an Integer of digits."""
_PLAIN_FUNCTIONS = {"sqrt", "cbrt", "Rational"}
"""Functions that are not a `sympy.Function`."""
_GROWING = ("sympy.functions.combinatorial", "sympy.functions.special")


class NoExpression(ValueError):
    """The text holds, or would compute, something that no answer needs."""


def expression(text: str) -> sympy.Expr:
    """Return the value of `text` with implicit products. Raises NoExpression, or the errors of sympy's functions."""
    from sympy.parsing import sympy_parser  # late: takes 0.3 s

    transformations = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)
    return evaluate(sympy_parser.stringify_expr(text, {}, _names(), transformations), {})


def evaluate(code: str, symbols: Mapping[str, Any], _: object = None) -> sympy.Expr:
    """Replace sympy's `eval_expr`. `code` is Python source by sympy's transformations; `symbols` add names."""
    try:
        tree = ast.parse(code.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # MemoryError: the parser's stack is full
        raise NoExpression(str(error)) from error
    return _value(tree.body, symbols)


@functools.cache
def _names() -> dict[str, Any]:
    """Return the names that `parse_expr` does not take for symbols. The values are never used."""
    import sympy

    return {**vars(builtins), **vars(sympy)}


def _value(node: ast.expr, symbols: Mapping[str, Any]) -> sympy.Expr:
    import sympy

    match node:
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(node.left, symbols), _value(node.right, symbols))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.left, symbols), _value(node.right, symbols))
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.operand, symbols))
        case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str() | int() as it)]) if kind in _MADE_OF_TEXT:
            return _from_text(_MADE_OF_TEXT[kind], it)
        case ast.Call(func=called, args=args, keywords=[]):
            return _applied(called, [_value(arg, symbols) for arg in args], symbols)
        case ast.Name(id=name) if isinstance(value := symbols.get(name, vars(sympy).get(name)), sympy.Expr):
            return value
    raise NoExpression(f"{type(node).__name__} is not allowed in an answer")


def _from_text(kind: str, text: str | int) -> sympy.Expr:
    import sympy

    if kind == "Float" and abs(int(str(text).lower().partition("e")[2] or 0)) > LARGEST:
        raise NoExpression(f"{text} is too large a number")
    return getattr(sympy, kind)(text)


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    bits = max(base.p.bit_length(), base.q.bit_length()) if base.is_Rational else 64
    if exponent.is_number and abs(exponent) * bits > BITS:
        raise NoExpression("the exponent is too large")
    return base**exponent


def _applied(called: ast.expr, values: list[sympy.Expr], symbols: Mapping[str, Any]) -> sympy.Expr:
    import sympy

    name = called.id if isinstance(called, ast.Name) else ""
    function = vars(sympy).get(name) if name else _value(called, symbols)
    if name not in _PLAIN_FUNCTIONS and not (isinstance(function, type) and issubclass(function, sympy.Function)):
        raise NoExpression(f"{name or 'this'} is not a function that answers may use")
    grows = str(function.__module__).startswith(_GROWING)
    if grows and any(value.is_number and abs(value) > LARGEST for value in values):
        raise NoExpression(f"the argument of {name} is too large")
    return function(*values)
