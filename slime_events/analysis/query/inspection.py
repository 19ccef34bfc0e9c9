"""`inspect`: run detectors over a run. `Inspection`: their findings. `second_rewards`: rewards of another grader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import pyarrow as pa

from schemas.doc import doc
from slime_events.analysis.query.database import NO_REWARDS
from slime_events.analysis.query.detectors.detector import Detector, Severity
from slime_events.analysis.query.open_tables import RunTables

Value = str | int | float | list[str] | None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A detector and its findings."""

    name: Annotated[str, doc("name of the detector, and of its view in SQL")]
    severity: Annotated[Severity, doc("`alarm` or `warning`")]
    finds: Annotated[str, doc("what it finds, one sentence")]
    sql: Annotated[str, doc("query for its findings")]
    compares_graders: Annotated[bool, doc("whether it needs a second grader, which the query alone has not")]
    parameters: Annotated[dict[str, float], doc("its thresholds")]
    findings: Annotated[tuple[dict[str, Value], ...], doc("its findings, column to value")]


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an inspection."""

    run: Annotated[str, doc("name of the run")]
    where: Annotated[str, doc("folder, or URL of the archive")]
    graded: Annotated[int, doc("number of graded training samples")]
    first_step: Annotated[int | None, doc("first step with such samples; None without any")]
    last_step: Annotated[int | None, doc("last step with such samples; None without any")]
    graded_twice: Annotated[int, doc("number of samples with a reward of a second grader")]
    detectors: Annotated[tuple[Checked, ...], doc("the detectors that were run")]

    @property
    def with_findings(self) -> list[Checked]:
        """The detectors with findings."""
        return [checked for checked in self.detectors if checked.findings]


async def inspect(
    tables: RunTables,
    run: str,
    where: str,
    detectors: Sequence[Detector],
    second_rewards: pa.Table = NO_REWARDS,
    *,
    is_on: bool = False,
) -> Inspection:
    """Run detectors over the tables of a run. is_on: whether it is on. Raises BadQuery, RunNotFound, and the log's
    errors.
    """
    rows, of_each = await tables.findings(detectors, second_rewards, is_on=is_on)
    (graded,) = rows.to_pylist()
    checked = [
        Checked(
            name=detector.name,
            severity=detector.severity,
            finds=detector.finds,
            sql=detector.sql(is_on=is_on),
            compares_graders=detector.needs_second_grader,
            parameters={parameter.name: parameter.default for parameter in detector.parameters},
            findings=tuple(findings.to_pylist()),
        )
        for detector, findings in of_each
    ]
    return Inspection(
        run=run,
        where=where,
        graded=graded["graded"],
        first_step=graded["first_step"],
        last_step=graded["last_step"],
        graded_twice=second_rewards.num_rows - second_rewards["reward"].null_count,
        detectors=tuple(checked),
    )


def second_rewards(rewards: Mapping[str, float | None]) -> pa.Table:
    """Return the rewards of a second grader as a table. rewards: by sample; None if grading failed."""
    return pa.table(
        [pa.array(rewards.keys(), pa.string()), pa.array(rewards.values(), pa.float64())], schema=NO_REWARDS.schema
    )


async def changed_rewards(tables: RunTables, changes: Mapping[str, float]) -> pa.Table:
    """Return all recorded rewards, with those in `changes` replaced. Raises as `inspect`."""
    recorded = dict((await tables.sql("SELECT sample, reward FROM graded")).rows())
    return second_rewards(recorded | {sample: changes[sample] for sample in recorded.keys() & changes.keys()})
