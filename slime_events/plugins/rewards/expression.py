"""A text as a sympy expression, by an interpreter of our own: sympy's `parse_expr` hands what it has read to `eval`.

sympy's transformations read the text (implicit products, factorials, names that are split into letters). What they make
of it is Python source, whose syntax tree is computed here, if it holds nothing but numbers, symbols, arithmetic and
mathematical functions: no attribute, index, text, lambda or other call, and no power of more than `BITS` bits.
"""

import ast
import builtins
import functools
import operator
from collections.abc import Mapping
from typing import Any

BITS = 1 << 17
"""Of a power's result: 10,000! has as many. Python takes hours over 9^9^9, and all of the memory."""
LARGEST = 10_000
"""Argument of a factorial and its like, and decimal exponent of a number."""

_OPERATORS: Mapping[type, Any] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.UAdd: operator.pos, ast.USub: operator.neg},
}
_MADE_OF_TEXT = {name: name for name in ("Symbol", "Function", "Integer", "Float")} | {"Number": "Integer"}
"""What sympy's transformations put around names and numbers. `Number` evaluates its text; it gets digits only."""
_PLAIN_FUNCTIONS = {"sqrt", "cbrt", "Rational"}
"""Those that are no `sympy.Function`."""
_GROWING = ("sympy.functions.combinatorial", "sympy.functions.special")


class NoExpression(ValueError):
    """The text holds, or would compute, what no answer needs."""


def expression(text: str) -> Any:
    """The value of `text` with implicit products. Raises NoExpression, or what sympy's functions raise."""
    from sympy.parsing import sympy_parser  # late: 0.3 s that only sympy's users pay

    transformations = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)
    return evaluate(sympy_parser.stringify_expr(text, {}, _names(), transformations), {})


def evaluate(code: Any, symbols: Mapping[str, Any], _: object = None) -> Any:
    """In place of sympy's `eval_expr`. code: Python source, by sympy's transformations. symbols: further names."""
    try:
        tree = ast.parse(code.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # MemoryError: the parser's stack is full
        raise NoExpression(str(error)) from error
    return _value(tree.body, symbols)


@functools.cache
def _names() -> dict[str, Any]:
    """What `parse_expr` does not take for symbols. Only looked up in."""
    import sympy

    return {**vars(builtins), **vars(sympy)}


def _value(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    import sympy

    match node:
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(node.left, symbols), _value(node.right, symbols))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.left, symbols), _value(node.right, symbols))
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.operand, symbols))
        case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str() | int() as it)]) if kind in _MADE_OF_TEXT:
            return _made(_MADE_OF_TEXT[kind], it)
        case ast.Call(func=called, args=args, keywords=[]):
            return _applied(called, [_value(arg, symbols) for arg in args], symbols)
        case ast.Name(id=name) if isinstance(found := symbols.get(name, vars(sympy).get(name)), sympy.Expr):
            return found
    raise NoExpression(f"{type(node).__name__} has no place in an answer")


def _made(kind: str, given: str | int) -> Any:
    import sympy

    if kind == "Float" and abs(int(str(given).lower().partition("e")[2] or 0)) > LARGEST:
        raise NoExpression(f"{given} is too large a number")
    return getattr(sympy, kind)(given)


def _power(base: Any, exponent: Any) -> Any:
    bits = max(base.p.bit_length(), base.q.bit_length()) if base.is_Rational else 64
    if exponent.is_number and abs(exponent) * bits > BITS:
        raise NoExpression("the exponent is too large")
    return base**exponent


def _applied(called: ast.expr, values: list[Any], symbols: Mapping[str, Any]) -> Any:
    import sympy

    name = called.id if isinstance(called, ast.Name) else ""
    function = vars(sympy).get(name) if name else _value(called, symbols)
    if name not in _PLAIN_FUNCTIONS and not (isinstance(function, type) and issubclass(function, sympy.Function)):
        raise NoExpression(f"{name or 'this'} is no function of an answer")
    grows = str(function.__module__).startswith(_GROWING)
    if grows and any(value.is_number and abs(value) > LARGEST for value in values):
        raise NoExpression(f"the argument of {name} is too large")
    return function(*values)
