"""Test that the audit reports every doctored log correctly, and that some log produces each sentence of the audit."""

from __future__ import annotations

import re

import pytest

from schemas.registry import BY_TYPE
from slime_events.analysis.audit.check import Check
from tests.audit.clean import Run
from tests.audit.doctoring import Doctoring
from tests.audit.doctorings import TABLE
from tests.audit.judged import Judged, findings_made, sentences


@pytest.mark.parametrize("doctoring", TABLE, ids=lambda doctoring: doctoring.id)
async def test_it_is_found_and_nothing_else(judged: Judged, doctoring: Doctoring) -> None:
    verdict = await judged.of(doctoring)
    sentences = "\n".join(map(str, verdict.findings))
    assert [finding.position for finding in verdict.findings] == [record.position for record in verdict.expected], (
        sentences
    )
    sentence = " ".join(f"{finding.wrong} {finding.means}" for finding in verdict.findings[:1])
    for name in verdict.names:
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", sentence), f"{name} is not in {sentences}"
    assert doctoring.counts.items() <= verdict.counts.items()


async def test_every_sentence_is_said_of_some_log(judged: Judged) -> None:
    """Switching one off fails above: a doctored log is there that says it, and its findings are counted."""
    assert len({doctoring.id for doctoring in TABLE}) == len(TABLE)
    produced = {sentence for doctoring in TABLE for sentence in (await judged.of(doctoring)).sentences}
    unsaid = [str(sentence) for sentence in sentences() if sentence not in produced]
    assert not unsaid, "no doctored log is there for these sentences: add one to tests/audit/doctorings"


def test_findings_are_made_in_one_place() -> None:
    assert [sentence.file for sentence in findings_made()] == ["check.py"]


def test_every_method_of_a_check_is_named_after_an_event() -> None:
    """A check looks at an event with the method of its name: a name of no event would never be called."""
    checks = [subclass for direct in Check.__subclasses__() for subclass in (direct, *direct.__subclasses__())]
    named = {name for check in checks for name in dir(check) if name.startswith("_on_")}
    assert len(named) > 10
    assert named <= {f"_on_{event_type.replace('.', '_')}" for event_type in BY_TYPE}


@pytest.mark.parametrize("kind", ["delete", "repeat", "swap", "change"])
async def test_no_event_can_be_touched(synchronous: Run, kind: str) -> None:
    """Whichever event it is, and however well the forger renumbers."""
    for place in range(0, len(synchronous.records) - 2, 9):
        log = synchronous.doctored()
        record = log.records[place]
        if kind == "delete":
            log.delete(record)
        elif kind == "repeat":
            log.insert(record, after=record)
        elif kind == "swap":
            log.move(log.records[place + 1], before=record)
        else:
            record.body["producer"] += "x"
        log.renumber()
        report = await log.audit(synchronous.auditor(files=False))
        assert not report.clean, f"{kind} of {record.type} at position {place + 1}"
