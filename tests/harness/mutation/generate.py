"""`generated`: every small fault of a file that one may think of, without choosing."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

from tests.harness.mutation.fault import Fault

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
TIMINGS = ("_S", "_BYTES", "_MB")
"""How names of constants end that no test may depend on."""
QUIET = ("log.", "_log.", "logger.", "_logger.", "logging.", "warnings.", "super().__init__", "gc.", "print")
"""Calls that no test is to notice: what they say is for people."""


class _Faults(ast.NodeVisitor):
    """Visits one file; each change is a new text for the text of one node."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.changes: list[tuple[int, str, str, str]] = []

    def change(self, node: ast.expr | ast.stmt, new: ast.AST | str, change: str) -> None:
        """The node's text is `new` instead."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        text = new if isinstance(new, str) else ast.unparse(new)
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.Name):
            text = f"({text})"
        self.changes.append((begin, self.source[begin:end].decode(), text, change))

    def visit_Compare(self, node: ast.Compare) -> None:
        for place, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[place] = COMPARE[type(operator)]()
            self.change(node, other, f"{type(operator).__name__} to {type(other.ops[place]).__name__}")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        self.change(node, other, "and, or swapped")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.change(node, node.operand, "not dropped")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(isinstance(side, ast.JoinedStr) or _text(side) for side in (node.left, node.right))
        if (other := ARITHMETIC.get(type(node.op))) and not texts:
            self.change(
                node, ast.BinOp(node.left, other(), node.right), f"{type(node.op).__name__} to {other.__name__}"
            )
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.change(node, repr(not node.value), f"{node.value} to {not node.value}")
        elif isinstance(node.value, int | float):
            self.change(node, repr(node.value + 1), f"{node.value} to {node.value + 1}")

    def _negated(self, test: ast.expr) -> None:
        if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            self.change(test, ast.UnaryOp(ast.Not(), test), "negated")

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negated(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negated(test)
            self.change(test, "True", "filter dropped")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
            self.change(node.func, SWAPPED[node.func.id], f"{node.func.id} to {SWAPPED[node.func.id]}")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.change(node, "return None", "returns None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.change(node, "pass", "raise dropped")  # what it says is prose

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            if ast.unparse(call.func).startswith(QUIET):
                return
            self.change(node, "pass", "call dropped")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Name) and target.id.endswith(TIMINGS) for target in node.targets):
            return
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.change(node, "pass", "assignment dropped")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not ast.unparse(node.target).endswith(TIMINGS):
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.change(node, "pass", "assignment dropped")
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        """An annotation is not run."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Mostly prose, and Python 3.11 does not say where its parts are."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:  # how its values are stored is no behaviour
            self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (node.args, *node.body):  # neither decorators nor the annotation of what it returns
            self.visit(part)


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def generated(area: str, file: str, root: Path, reasons: dict[tuple[str, str, str], str]) -> Iterator[Fault]:
    """All of a file, by their place in it."""
    source = (root / file).read_bytes()
    visitor = _Faults(source)
    visitor.visit(ast.parse(source))
    lines = source.decode().splitlines()
    for begin, old, new, change in sorted(visitor.changes):
        text = lines[source.count(b"\n", 0, begin)].strip()
        yield Fault(area, file, old, new, begin, change, equivalent=reasons.get((file, text, change), ""))
