"""`Recorder`: which functions of the project each test calls, and how long it takes. A plugin of pytest."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any

import pytest


class Recorder:
    """failed: the first test that did. Of threads and of what is awaited too; of no other process."""

    def __init__(self, calls: bool) -> None:
        self._calls = calls
        self._root = os.getcwd() + os.sep
        self._names: dict[Any, str | None] = {}
        self._now: set[str] = set()
        self._shared: dict[str, set[str]] = {}
        self._tests: dict[str, dict[str, Any]] = {}
        self._took: dict[str, float] = {}
        self._failed: list[str] = []

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        name = self._names.get(code, "")
        if name == "":
            inside = code.co_filename.startswith(self._root)
            name = f"{code.co_filename.removeprefix(self._root)}::{code.co_qualname}" if inside else None
            if name and name.startswith("tests/"):
                name = None
            self._names[code] = name
        if name is not None:
            self._now.add(name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """One test, with its fixtures."""
        self._now = set()
        if self._calls:
            threading.settrace(self._trace)
            sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            if self._calls:
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]
                self._tests[item.nodeid] = {"calls": sorted(self._now), "took_s": self._took.get(item.nodeid, 0.0)}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
        """Count the calls of a shared fixture as calls of each test of its file."""
        before, self._now = self._now, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._shared.setdefault(request.node.nodeid.partition("::")[0], set()).update(self._now)
            self._now |= before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Its halves, and what became of them."""
        self._took[report.nodeid] = self._took.get(report.nodeid, 0.0) + report.duration
        if report.failed or (report.skipped and self._calls):
            self._failed.append(report.nodeid)

    def report(self) -> dict[str, Any]:
        """Return the calls of each test. Leaves out tests that fail or skip without a fault: they cannot show one."""
        kept = {name: test for name, test in self._tests.items() if name not in self._failed}
        for name, test in kept.items():
            test["calls"] = sorted({*test["calls"], *self._shared.get(name.partition("::")[0], ())})
        return {"failed": self._failed, "tests": kept}
