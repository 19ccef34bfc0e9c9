"""Test a change in less than two minutes: `make quick`, or `python -m tools.quick [--base REV] [--list]`.

The change is every file that differs from the point where the branch left `main`, including uncommitted files. Lint
runs first. Then the changed tests run, the tests that import a changed module, the tests that import those modules, and
so on, until the time is used up. `make test` runs the tests with the mark `real` or `soak`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "storage", "slime_events", "actors", "serve_apps", "tests", "tools", "benchmarks")
BUDGET_S = 90.0
"""Seconds after which no batch of tests starts."""
BATCH = 16
"""Test files per call of pytest. Nearer files are in an earlier batch."""
LINT = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("lint-imports",), ("mypy",))
PAGES = ("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples")
NO_TESTS = 5
"""pytest's exit code if a batch has only tests with other marks."""


def changed_files(base: str) -> list[str]:
    """Return the paths that differ from `base`, relative to the repository, including untracked files."""
    fork = _git("merge-base", base, "HEAD")[0]
    return sorted({*_git("diff", "--name-only", fork), *_git("ls-files", "--others", "--exclude-standard")})


def nearest_tests(changed: Iterable[str], graph: grimp.ImportGraph) -> Iterator[list[str]]:
    """Yield test files by distance: the changed ones first, then those that import a changed module, and so on."""
    paths = [PurePosixPath(path) for path in changed]
    modules = {module_name(path) for path in paths if path.suffix == ".py"} & graph.modules
    tests = {test for path in paths for test in _beside(path, graph)}
    seen = set(modules)
    while modules:
        tests |= {module for module in modules if is_test(module)}
        yield sorted(f"{test.replace('.', '/')}.py" for test in tests)
        modules = {user for module in modules for user in graph.find_modules_that_directly_import(module)} - seen
        seen |= modules
        tests = set()
    if tests:
        yield sorted(f"{test.replace('.', '/')}.py" for test in tests)


def module_name(path: PurePosixPath) -> str:
    """Return the module of a Python file of this repository."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_test(module: str) -> bool:
    """Return whether pytest collects the module."""
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


def batches(nearest: Iterable[Sequence[str]], size: int) -> Iterator[list[str]]:
    """Yield test files in groups of at most `size`, the nearest first, each once."""
    seen: set[str] = set()
    for files in nearest:
        new = [file for file in files if file not in seen]
        seen.update(new)
        yield from (new[start : start + size] for start in range(0, len(new), size))


def _beside(path: PurePosixPath, graph: grimp.ImportGraph) -> list[str]:
    """Return the tests of a file that no module imports: a page, an example, a golden file, a table of faults."""
    if path.parts[0] in PAGES:
        folder = "tests.api." if path.parts[0] == "examples" else "tests.docs."
    elif path.parts[0] == "tests" and path.suffix != ".py" and len(path.parts) > 2:
        rooms = path.parts[1:3] if path.parts[1] == "harness" else path.parts[1:2]
        folder = f"tests.{'.'.join(rooms)}."
    else:
        return []
    return [module for module in graph.modules if module.startswith(folder) and is_test(module)]


def _git(*words: str) -> list[str]:
    return subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def _run(*words: str) -> int:
    return subprocess.run((sys.executable, "-m", *words), cwd=ROOT).returncode


def _lint() -> int:
    folder = Path(sys.executable).parent
    return max(subprocess.run((folder / words[0], *words[1:]), cwd=ROOT).returncode for words in LINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Lint and test the change; the exit code of the first that fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.quick", description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="main", help="branch or commit that the change is compared with [main]")
    parser.add_argument("--list", action="store_true", help="print the test files, the nearest first, and run nothing")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    changed = changed_files(options.base)
    groups = list(batches(nearest_tests(changed, grimp.build_graph(*PACKAGES)), BATCH))
    if options.list:
        print("\n".join(file for group in groups for file in group))
        return 0
    if failed := _lint():
        return failed
    count = 0
    for group in groups:
        if time.monotonic() - begun > BUDGET_S:
            break
        code = _run("pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not real and not soak", *group)
        if code not in (0, NO_TESTS):
            return code
        count += len(group)
    every = sum(map(len, groups))
    rest = f"; {every - count} farther ones are left to `make test`" if count < every else ""
    print(f"{len(changed)} changed files: {count} of {every} test files that they reach passed{rest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
