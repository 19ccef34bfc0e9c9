"""`hunt`: each fault in a copy of the project, with the tests that reach it."""

from __future__ import annotations

import compileall
import enum
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.harness.mutation.areas import AREAS, ROOT
from tests.harness.mutation.fault import Fault
from tests.harness.mutation.reach import Reach

LEFT_OUT = shutil.ignore_patterns(".*", "slime-runs", "build", "*.egg-info")
PRODUCT = ("schemas", "storage", "slime_events", "actors", "serve_apps")
LIMIT_S, TEST_S = 240.0, 60.0
PASSED, TOO_LONG = (0, 5), -9
"""pytest's codes where no test failed, and the code of a run that was ended."""
T = TypeVar("T")


class Outcome(enum.StrEnum):
    """survived: all tests that reach it passed. unreached: there is none."""

    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "survived"
    UNREACHED = "unreached"


NOTICED = (Outcome.KILLED, Outcome.HUNG)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one fault. by: the first test that failed; empty if none failed or the import failed."""

    fault: Fault
    line: int
    outcome: Outcome
    by: str = ""
    took_s: float = 0.0


class Nursery:
    """A copy of the project with a warm process in it. The working tree is never written."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mut"))
        self.root = self._home / "p"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT)
        for package in PRODUCT:  # checked by their text: a fault is put in faster than a file's time changes
            by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(self.root / package, quiet=2, force=True, invalidation_mode=by_hash)
        (self._home / "t").mkdir()
        environment = os.environ | {"PYTHONPATH": str(self.root), "TMPDIR": str(self._home / "t")}
        environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-m", "tests.harness.mutation.nursery"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self._process = subprocess.Popen(command, cwd=self.root, env=environment, **pipes)

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """One run of tests."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit(
                f"the warm process ended with {self._process.wait()}: python -m tests.harness.mutation.nursery"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process and its children. Later calls of `ask` answer that it has ended."""
        self._process.terminate()
        self._process.wait()

    def close(self) -> None:
        """Ends it and removes the copy."""
        self.end()
        shutil.rmtree(self._home, ignore_errors=True)


def hunt(faults: Sequence[Fault], jobs: int, kept: Path, tell: Callable[[Result], None]) -> tuple[list[Result], Reach]:
    """Return the results in the order of the faults. Calls `tell` with each as soon as it is there."""
    reach, results = Reach(ROOT, kept), dict[int, Result]()
    at_work = [Nursery() for _ in range(jobs)]
    try:
        named = {file for fault in faults for file in _files(fault)}
        _share(sorted(named), at_work, lambda file, nursery: reach.record(file, nursery.ask))

        def judge(numbered: tuple[int, Fault], nursery: Nursery) -> None:
            results[numbered[0]] = result = _try(numbered[1], reach, nursery)
            tell(result)

        _share(list(enumerate(faults)), at_work, judge)
        noticing = sorted({result.by for result in results.values() if result.by})
        reach.failed += (failing := _control(noticing, at_work[0]))
    finally:
        for nursery in at_work:
            nursery.close()
    in_order = [results[number] for number in range(len(faults))]
    return [replace(r, outcome=Outcome.SURVIVED) if r.by in failing else r for r in in_order], reach


def _control(tests: list[str], nursery: Nursery) -> list[str]:
    """Return the tests that also fail without a fault: their failures show nothing."""
    if not tests:
        return []
    answer = nursery.ask({"tests": tests, "all": True, "limit_s": LIMIT_S + TEST_S * len(tests), "test_s": TEST_S})
    failed: list[str] = answer.get("failed", tests)
    return failed


def _share(tasks: Iterable[T], at_work: Sequence[Nursery], do: Callable[[T, Nursery], None]) -> None:
    """Each nursery takes the next task as it is free."""
    waiting = iter(list(tasks))
    lock = threading.Lock()

    def work(nursery: Nursery) -> None:
        while True:
            with lock:  # looked up each time: nothing waits any more once one has failed
                task = next(waiting, None)
            if task is None:
                return
            do(task, nursery)

    with ThreadPoolExecutor(len(at_work)) as threads:
        try:
            for done in [threads.submit(work, nursery) for nursery in at_work]:
                done.result()
        except BaseException:
            with lock:
                waiting = iter(())
            for nursery in at_work:
                nursery.end()
            raise


def _files(fault: Fault) -> list[str]:
    """The test files that may notice it. One that the list names and that is not there yet notices nothing."""
    area = AREAS.get(fault.area)
    named = [name for name in fault.tests if (ROOT / name).exists()]
    return [*named, *(area.test_files(ROOT) if area else ())]


def _try(fault: Fault, reach: Reach, nursery: Nursery) -> Result:
    path = nursery.root / fault.file
    source = path.read_bytes()
    line = fault.line(source)
    near = reach.tests_of(fault, source, fault.tests)
    far = [tests for tests in reach.tests_of(fault, source, _files(fault)) if tests not in near]
    if not near and not far:
        return Result(fault, line, Outcome.UNREACHED)
    path.write_bytes(fault.applied(source))
    took_s = 0.0
    try:
        for tests in filter(None, _stages([*near, *far])):  # most faults are noticed at once
            answer = nursery.ask({"tests": tests, "limit_s": LIMIT_S, "test_s": TEST_S})
            took_s += answer["took_s"]
            if answer["code"] not in PASSED:
                break
    finally:
        path.write_bytes(source)
    outcome = Outcome.HUNG if answer["code"] == TOO_LONG else Outcome.KILLED
    outcome = Outcome.SURVIVED if answer["code"] in PASSED else outcome
    return Result(fault, line, outcome, next(iter(answer.get("failed", ())), ""), took_s)


def _stages(files: list[list[str]]) -> tuple[list[str], list[str]]:
    return files[0], [test for tests in files[1:] for test in tests]
