"""`Report`: result of retraining, and likely causes of a difference."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.runs import RunStarted
from slime_events.loop.training.difference import Compared, Retrained
from slime_events.plugins.trainer_points import IN_STEPS

CHANGED = frozenset({Compared.REWARDS, Compared.BATCH, Compared.COMMITTED_BATCH})
"""These follow from the log alone, not from training."""


def is_changed(step: Retrained) -> bool:
    """Return whether the log itself contradicts the commit."""
    return any(difference.compared in CHANGED for difference in step.differences)


def likely_causes(
    wrong: Retrained, started: RunStarted | None, environment: Mapping[str, str], *, restored: int | None = None
) -> tuple[str, ...]:
    """Return why a step may differ, the likeliest cause first.

    environment: versions of the parts here, named as in run.started. restored: version since which the run's own
    optimizer is approximate, if there is one.
    """
    compared = {difference.compared for difference in wrong.differences}
    if is_changed(wrong):
        return (
            f"events of step {wrong.step} were changed after the run. `slime-events audit` lists those that do not fit",
        )
    then = started.environment.items() if started is not None else ()
    others = [
        f"{part} {v} then, {environment.get(part, 'missing')} now" for part, v in then if environment.get(part) != v
    ]
    causes = []
    if restored is not None:
        causes.append(
            f"the run's trainer was restored at version {restored} with an approximate optimizer: steps from there on "
            "are reproduced only from a checkpoint that was saved since"
        )
    if Compared.FUNCTION in compared:
        causes.append("a user's function has changed since the run: see above")
    elif own := _functions(started):
        causes.append(f"a user's function is not deterministic ({', '.join(own)})")
    if Compared.MODEL in compared:
        causes.append("the reference or the teacher is another model now: see above")
    causes += [f"different versions of software ({'; '.join(others)})"] if others else []
    if compared <= {Compared.OPTIMIZER, Compared.CRITIC}:
        causes.append("the layout of the run's ranks was not that of its settings: the weights are equal")
    causes.append("different hardware: the same instructions on another processor may round differently")
    causes.append(f"an event of step {wrong.step} was changed after the run, together with every digest of it")
    return tuple(causes)


def _functions(started: RunStarted | None) -> list[str]:
    """Return the paths of the user's functions that took part in training."""
    settings = started.settings if started is not None else {}
    paths = (settings.get(point.component, {}).get(point.field) for point in IN_STEPS)
    return [path for path in paths if path]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of retraining."""

    run: Annotated[str, doc("name of the run")]
    origin: Annotated[str, doc("what the ranks began with")]
    compared: Annotated[str, doc("what each step was compared with")]
    topology: Annotated[str, doc("layout of the ranks")]
    exact: Annotated[bool, doc("whether digests are compared, not only distances")]
    steps: Annotated[tuple[Retrained, ...], doc("retrained steps")]
    seconds: Annotated[float, doc("duration [s]")]
    building: Annotated[float, doc("part of it until the ranks were ready [s]")]
    run_seconds: Annotated[float | None, doc("duration of the run for the same steps [s]")] = None
    causes: Annotated[tuple[str, ...], doc("causes of a difference, the likeliest first")] = ()
    saved: Annotated[tuple[str, ...], doc("folders that were written")] = ()

    @property
    def wrong(self) -> Retrained | None:
        """The first step that differs; None if none does."""
        return next((step for step in self.steps if step.differences), None)

    @property
    def speed_up(self) -> float | None:
        """Speed relative to the run; None if the run's time is unknown, or nothing was trained."""
        return self.run_seconds / self.seconds if self.run_seconds and self.steps else None


def step_text(step: Retrained) -> str:
    """Return one line of progress."""
    outcome, apart = "DIFFERS" if step.differences else "equal", step.distance
    if apart is not None:
        far = f"max |difference| {apart.max_abs:.3g}, relative L2 {apart.relative_l2:.3g}"
        outcome = f"DIFFERS, {far}" if step.differences else far
    return f"step {step.step:>4} -> v{step.version:<4}  {outcome}  {step.seconds:.3f} s"


def report_text(report: Report) -> str:
    """Return the last lines: what was compared, and the result."""
    wrong = report.wrong
    lines = [f"began with {report.origin}, on {report.topology}", f"compared: {report.compared}"]
    lines += [f"written: {folder}" for folder in report.saved]
    if wrong is None:
        lines.append(_verdict(report))
    else:
        lines.append(f"step {wrong.step} of run {report.run} differs from its commit:")
        for difference in wrong.differences:
            detail = f" ({difference.detail})" if difference.detail else ""
            lines.append(f"  {difference.compared}: recorded {difference.recorded}, now {difference.now}{detail}")
        lines += [f"likely cause: {cause}" for cause in report.causes]
        different = sum(bool(step.differences) for step in report.steps)
        lines.append(f"{different} of {len(report.steps)} steps re-trained differ{_furthest(report)}")
    return "\n".join(lines)


def _verdict(report: Report) -> str:
    count = f"{len(report.steps)} steps re-trained" if len(report.steps) != 1 else "1 step re-trained"
    if report.exact:
        outcome = "every digest equal" if report.steps else "none was needed"
    else:
        outcome = _furthest(report).removeprefix(", ") or "no weights to compare with"
    pace = f"{report.seconds:.1f} s, {report.building:.1f} s of it until the ranks were ready"
    if report.speed_up is not None:
        pace = f"{report.speed_up:.1f} x as fast as the run: {pace}, against {report.run_seconds:.1f} s"
    return f"{count}, {outcome}, {pace}"


def _furthest(report: Report) -> str:
    """Return `, weights at most 1e-09 away (relative L2)`; "" if no weights were compared."""
    apart = [step.distance.relative_l2 for step in report.steps if step.distance]
    return f", weights at most {max(apart):.3g} away (relative L2)" if apart else ""
