"""`Reach`: which tests call the function that a fault is in; recorded once a test file, kept in build/mutation."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.harness.mutation.fault import Fault

Ask = Callable[[dict[str, Any]], dict[str, Any]]
RECORD_S = 400.0
ENOUGH_S = 60.0
"""As long as one fault's tests may take by the record: the quickest that reach it."""
OF_A_FILE_S = 10.0
"""Of these, those of one test file: there may be another that is about the fault."""


@dataclass(frozen=True, slots=True)
class _Tests:
    """The tests of one file. of: calls and seconds by test. begin_s: time of the imports before the first test. read:
    what the file itself imports.
    """

    of: dict[str, dict[str, Any]]
    begin_s: float
    read: frozenset[str]


class Reach:
    """failed: tests that fail, or are skipped, without any fault; they are not used."""

    def __init__(self, root: Path, kept: Path) -> None:
        self._root, self._kept = root, kept
        self._files: dict[str, _Tests] = {}
        self.failed: list[str] = []
        kept.mkdir(parents=True, exist_ok=True)

    def record(self, file: str, ask: Ask) -> None:
        """Record what one test file reaches, once per content. An old record only makes the choice of tests worse."""
        source = (self._root / file).read_bytes()
        digest = hashlib.sha256(file.encode() + source)
        kept = self._kept / f"{digest.hexdigest()[:16]}.json"
        if not kept.exists():
            answer = ask({"tests": [file], "record": True, "limit_s": RECORD_S, "test_s": RECORD_S})
            if "tests" not in answer:
                raise SystemExit(f"{file} ended with {answer['code']} without a fault: run it with pytest and mend it")
            kept.write_text(json.dumps(answer))
        answer = json.loads(kept.read_text())
        tests, read = answer["tests"], frozenset(f"{path}::<import>" for path in _imported(source))
        for test in tests.values():
            test["calls"] += read  # values that are made on import are read without a call
        begin_s = answer["took_s"] - sum(test["took_s"] for test in tests.values())
        self._files[file] = _Tests(tests, begin_s, read)
        self.failed += answer["failed"]

    def tests_of(self, fault: Fault, source: bytes, files: Iterable[str]) -> list[list[str]]:
        """Return the tests of `files` that reach a fault, file by file, up to ENOUGH_S.

        Files that import the fault's file come first, then files with quick tests. The tests call the fault's function.
        If none does (it runs in another process, or at import), they call its file; if none does, its package.
        """
        function = f"{fault.file}::{_function(source, fault.line(source))}"
        package = fault.file.rpartition("/")[0] + "/"
        recorded = [self._files[file] for file in dict.fromkeys(files) if file in self._files]
        called = [test["calls"] for tests in recorded for test in tests.of.values() if function in test["calls"]]
        at_import = all(f"{fault.file}::<module>" in calls for calls in called)  # by the test that imported it first
        for number, reaches in enumerate(
            (
                lambda calls: not at_import and function in calls,
                lambda calls: any(call.startswith(fault.file + "::") for call in calls),
                lambda calls: any(call.startswith(package) for call in calls),
            )
        ):
            reaching = ((tests.read, _reaching(tests, reaches, all_of=number > 0)) for tests in recorded)
            if reaching_files := [(read, file) for read, file in reaching if file]:
                break
        chosen: list[list[str]] = []
        total = 0.0
        at_first = partial(_nearness, f"{fault.file}::<import>")
        for _, (took_s, names) in sorted(reaching_files, key=at_first):
            total += took_s
            if chosen and total > ENOUGH_S:
                break
            chosen.append(names)
        return chosen


def _nearness(imported: str, candidate: tuple[frozenset[str], tuple[float, list[str]]]) -> tuple[bool, float]:
    read, (took_s, names) = candidate
    return imported not in read, took_s / len(names)


def _reaching(tests: _Tests, reaches: Callable[[list[str]], bool], *, all_of: bool) -> tuple[float, list[str]] | None:
    """Return seconds, with those of the file's imports, and names of the tests of one file, the quickest first.

    all_of: if one test reaches it, choose all tests of the file, as a value made at import is read without a call.
    """
    reaching = {name for name, test in tests.of.items() if reaches(test["calls"])}
    chosen = tests.of if all_of and reaching else reaching
    quickest = sorted((tests.of[name]["took_s"], name) for name in chosen)
    kept, total = [], tests.begin_s
    for took_s, name in quickest:
        if kept and total + took_s > OF_A_FILE_S:
            break
        kept.append(name)
        total += took_s
    return (total, kept) if kept else None


def _imported(source: bytes) -> set[str]:
    """Files that a test file names in its imports, as far as there are such."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {f"{name.replace('.', '/')}.py" for name in names}


def _function(source: bytes, line: int) -> str:
    """The qualified name of the innermost function with this line; <module> outside of all."""

    def inside(node: ast.AST, prefix: str) -> str:
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.stmt) and child.lineno <= line <= (child.end_lineno or child.lineno)):
                continue
            if isinstance(child, ast.ClassDef):
                return inside(child, f"{prefix}{child.name}.")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                if line < child.body[0].lineno:
                    return ""  # its defaults are made with what is around it
                return inside(child, f"{prefix}{child.name}.<locals>.") or f"{prefix}{child.name}"
            return inside(child, prefix)
        return ""

    return inside(ast.parse(source), "") or "<module>"
