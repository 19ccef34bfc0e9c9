"""Test that whatever the pages import, run with `python -m` or pass to make exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from slime_events.core.config.installed import parsed
from tests.docs.pages import PAGES, ROOT

_IMPORT = re.compile(
    r"^from ((?:schemas|storage|slime_events|actors|serve_apps)[\w.]*) import ([\w, ]+)$", re.MULTILINE
)
_MODULE = re.compile(r"python -m ((?:schemas|slime_events|tests|benchmarks)[\w.]*)")
_TARGET = re.compile(r"(?:`|^)make (?:\w+=\S+ )*([a-z][\w-]*)", re.MULTILINE)


def _file_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _names_in(file: Path) -> set[str]:
    """Return the names that a module defines or imports at its top level. It is not imported: some take seconds."""
    names: set[str] = set()
    body = parsed(file).body
    for node in [*body, *(inner for node_ in body if isinstance(node_, ast.If) for inner in node_.body)]:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return names


def test_every_name_that_a_page_imports_is_there() -> None:
    imports = [name for page in PAGES for name in _IMPORT.findall(page.read_text(encoding="utf-8"))]
    assert len(imports) > 5
    wrong = [
        f"{module}.{name}"
        for module, names in imports
        for name in names.split(", ")
        if not _file_of(module).exists() or name not in _names_in(_file_of(module))
    ]
    assert not wrong


def test_every_module_that_a_page_runs_can_be_run() -> None:
    modules = {name for page in PAGES for name in _MODULE.findall(page.read_text(encoding="utf-8"))}
    assert not [name for name in modules if not _can_run(name)]


def _can_run(module: str) -> bool:
    file = _file_of(module)
    return (ROOT / module.replace(".", "/") / "__main__.py").exists() or (
        file.exists() and "__main__" in file.read_text(encoding="utf-8")
    )


def test_every_target_that_a_page_makes_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    targets_ = {name for page in PAGES for name in _TARGET.findall(page.read_text(encoding="utf-8"))}
    assert {"demo", "test"} <= targets_
    assert targets_ <= targets
