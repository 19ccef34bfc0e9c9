"""Audit every doctored log, each built and audited once, and list all sentences of the audit."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from slime_events.analysis.audit import check as check_module
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.report import Counts, Finding
from slime_events.core.config.installed import parsed
from tests.audit.clean import Run
from tests.audit.doctored import Record
from tests.audit.doctoring import Doctoring, chosen

FOLDER = Path(check_module.__file__).parent


class Sentence(NamedTuple):
    """A place in the audit that says what is wrong: `self.find(...)`."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"slime_events/analysis/audit/{self.file}:{self.line}"


@dataclass(frozen=True)
class Verdict:
    """Hold the outcome of one check on one doctored log. expected: records to locate, in order; sentences: the places
    that reported them.
    """

    findings: tuple[Finding, ...]
    expected: tuple[Record, ...]
    names: tuple[str, ...]
    counts: Counts
    sentences: frozenset[Sentence]


@dataclass
class Judged:
    """clean: the logs that are doctored, by name."""

    clean: dict[str, Run]
    _verdicts: dict[str, Verdict] = field(default_factory=dict)

    async def of(self, doctoring: Doctoring) -> Verdict:
        """The verdict on it."""
        if doctoring.id not in self._verdicts:
            self._verdicts[doctoring.id] = await self._judge(doctoring)
        return self._verdicts[doctoring.id]

    async def _judge(self, doctoring: Doctoring) -> Verdict:
        run = self.clean[doctoring.log]
        log = run.doctored()
        located = None if doctoring.located is None else chosen(log, doctoring.located)
        touched = doctoring.doctor(log)
        names = tuple(str(name(log) if callable(name) else name) for name in doctoring.names)
        with _listening(doctoring.check) as sentences:
            report = await log.audit(run.auditor(files=doctoring.check == "files"))
        assert report.unread is None
        (checked,) = [check for check in report.checks if check.name == doctoring.check]
        return Verdict(
            checked.findings,
            tuple(touched if located is None else located),
            names,
            checked.counts,
            frozenset(sentences),
        )


@contextmanager
def _listening(check: str) -> Iterator[set[Sentence]]:
    """The places from which this check says something meanwhile."""
    sentences: set[Sentence] = set()
    find = Check.find

    def noting(self: Check, wrong: str, means: str) -> None:
        if self.name == check:
            code = sys._getframe(1)
            sentences.add(Sentence(Path(code.f_code.co_filename).name, code.f_lineno))
        find(self, wrong, means)

    with patch.object(Check, "find", noting):
        yield sentences


def sentences() -> list[Sentence]:
    """All that the audit can say, by its source."""
    return [
        Sentence(path.name, node.lineno)
        for path in sorted(FOLDER.glob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "self.find"
    ]


def findings_made() -> list[Sentence]:
    """Return where a `Finding` is constructed: in `Check.find` alone, or `sentences` would miss some."""
    return [
        Sentence(path.name, node.lineno)
        for path in sorted(FOLDER.glob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Finding", "Finding.of")
    ]
