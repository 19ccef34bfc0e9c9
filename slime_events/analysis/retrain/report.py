"""`Report`: what training again has come to, and why a step may differ."""

from collections.abc import Mapping

import msgspec

from schemas.runs import RunStarted
from slime_events.analysis.retrain.difference import Compared, Retrained
from slime_events.plugins.trainer_points import IN_STEPS

CHANGED = frozenset({Compared.REWARDS, Compared.BATCH, Compared.COMMITTED_BATCH})
"""These follow from the log alone: training has no part in them."""


def is_changed(step: Retrained) -> bool:
    """Whether the log itself contradicts what was committed."""
    return any(one.compared in CHANGED for one in step.differences)


def likely_causes(
    wrong: Retrained, started: RunStarted | None, environment: Mapping[str, str], *, restored: int | None = None
) -> tuple[str, ...]:
    """Why a step may differ, the likeliest first. environment: versions of the parts here, named as in run.started.
    restored: the version since which the run's own optimizer is approximate, if there is one.
    """
    compared = {one.compared for one in wrong.differences}
    if is_changed(wrong):
        return (f"events of step {wrong.step} were changed after the run: `slime-events audit` says which do not fit",)
    then = started.environment.items() if started is not None else ()
    others = [
        f"{part} {v} then, {environment.get(part, 'missing')} now" for part, v in then if environment.get(part) != v
    ]
    causes = []
    if restored is not None:
        causes.append(
            f"the run's trainer was restored at version {restored} with an approximate optimizer: steps from there on "
            "come out as committed only from a checkpoint that was saved since"
        )
    if Compared.FUNCTION in compared:
        causes.append("a function of the run's user is another one now: see above which")
    elif own := _functions(started):
        causes.append(f"a function of the run's user is not deterministic ({', '.join(own)})")
    if Compared.MODEL in compared:
        causes.append("the reference or the teacher is another model now: see above which")
    causes += [f"other versions of the parts ({'; '.join(others)})"] if others else []
    if compared <= {Compared.OPTIMIZER, Compared.CRITIC}:
        causes.append("the run's ranks were laid out in another way than its settings say: the weights are equal")
    causes.append("other hardware than the run's: the same instructions on another processor may round differently")
    causes.append(f"an event of step {wrong.step} was changed after the run together with every digest that names it")
    return tuple(causes)


def _functions(started: RunStarted | None) -> list[str]:
    """Paths of the user's functions that had a part in the training."""
    settings = started.settings if started is not None else {}
    paths = (settings.get(point.component, {}).get(point.field) for point in IN_STEPS)
    return [path for path in paths if path]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What training again has come to. origin: what the ranks began with. compared: what each step was compared with.
    seconds: in all; building: until the ranks were ready. run_seconds: of the run for the same steps. causes: of a
    difference, the likeliest first. saved: folders that were written.
    """

    run: str
    origin: str
    compared: str
    topology: str
    exact: bool
    steps: tuple[Retrained, ...]
    seconds: float
    building: float
    run_seconds: float | None = None
    causes: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()

    @property
    def wrong(self) -> Retrained | None:
        """The first step that differs."""
        return next((step for step in self.steps if step.differences), None)

    @property
    def speed_up(self) -> float | None:
        """How many times faster than the run; None where the run's time is not known, or nothing was trained."""
        return self.run_seconds / self.seconds if self.run_seconds and self.steps else None


def step_text(step: Retrained) -> str:
    """One line of progress."""
    outcome, apart = "DIFFERS" if step.differences else "equal", step.distance
    if apart is not None:
        far = f"max |difference| {apart.max_abs:.3g}, relative L2 {apart.relative_l2:.3g}"
        outcome = f"DIFFERS, {far}" if step.differences else far
    return f"step {step.step:>4} -> v{step.version:<4}  {outcome}  {step.seconds:.3f} s"


def report_text(report: Report) -> str:
    """The last lines: what was compared, and what it came to."""
    wrong = report.wrong
    lines = [f"began with {report.origin}, on {report.topology}", f"compared: {report.compared}"]
    lines += [f"written: {folder}" for folder in report.saved]
    if wrong is None:
        lines.append(_verdict(report))
    else:
        lines.append(f"step {wrong.step} of run {report.run} differs from the committed one:")
        for one in wrong.differences:
            detail = f" ({one.detail})" if one.detail else ""
            lines.append(f"  {one.compared}: recorded {one.recorded}, now {one.now}{detail}")
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
    """`, weights at most 1e-09 away (relative L2)`; empty where no weights were compared."""
    apart = [step.distance.relative_l2 for step in report.steps if step.distance]
    return f", weights at most {max(apart):.3g} away (relative L2)" if apart else ""
