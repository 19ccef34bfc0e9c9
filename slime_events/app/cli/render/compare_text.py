"""A comparison of two runs for a terminal."""

from slime_events.analysis.compare.comparison import (
    BatchFigures,
    ComparedRun,
    Comparison,
    Difference,
    Distribution,
    Input,
    Kind,
    StepComparison,
)
from slime_events.app.cli.render.text import paragraphs, shorten, table

SETTINGS, STEPS = 20, 12
"""Most settings and steps that are listed."""
WIDTH, BEFORE = 64, 20
"""Most characters of a value, and of its part before the first difference."""
_NOUNS = {
    Kind.PROMPT: "prompts",
    Kind.TOKENS: "tokens",
    Kind.REWARD: "rewards",
    Kind.DECISION: "decisions",
    Kind.BATCH: "batch",
    Kind.GRADIENT_NORM: "gradient norm",
    Kind.DIGEST: "digests",
}


def compare_text(view: Comparison) -> str:
    """Return a comparison as text: the runs, the settings that differ, the first difference, and the steps."""
    return paragraphs(
        table(("", "A", "B"), [("run", view.a.run, view.b.run), ("steps", _steps(view.a), _steps(view.b))]),
        _settings(view.settings),
        _first(view) if view.first else _equal(view),
        _step_table(view),
    )


def _steps(run: ComparedRun) -> str:
    return "none" if run.last_step is None else f"{run.first_step} to {run.last_step}"


def _settings(settings: tuple[Input, ...]) -> str:
    if not settings:
        return "no setting differs"
    left = len(settings) - SETTINGS
    more = f"\nand {left} more (--json has all)" if left > 0 else ""
    return _inputs("setting", settings[:SETTINGS]) + more


def _inputs(head: str, inputs: tuple[Input, ...]) -> str:
    return table((head, "A", "B"), [(value.name, *_cells(value)) for value in inputs])


def _cells(value: Input) -> tuple[str | None, str | None]:
    """Return both values as text, long texts from shortly before the first place where they differ."""
    a, b = (f"{v:.9g}" if isinstance(v, float) else None if v is None else str(v) for v in (value.a, value.b))
    if a and b and a != b and max(len(a), len(b)) > WIDTH:
        first = next((place for place, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), 0)
        if (begin := first - BEFORE) > 0:
            a, b = f"…{a[begin:]}", f"…{b[begin:]}"
    return a and shorten(a, WIDTH), b and shorten(b, WIDTH)


def _equal(view: Comparison) -> str:
    if not view.steps:
        return "the runs have no step in common, and what both have before it is equal"
    return (
        f"equal in steps {view.steps[0].step} to {view.steps[-1].step}: the same prompts, tokens, rewards, decisions, "
        "batches, gradient norms and digests"
    )


def _first(view: Comparison) -> str:
    first = view.first
    assert first is not None
    values = Input(name=first.field.replace("_", " "), a=first.a, b=first.b)
    places = Input(name="position in the log", a=first.a_position, b=first.b_position)
    return paragraphs(
        f"first difference: {_place(first)}", _inputs("", (values, places)), _inputs("inputs", first.inputs)
    )


def _place(first: Difference) -> str:
    """Return `step 7, reward: value of train-0-000056-s3`."""
    where = "before the first step" if first.step is None else f"step {first.step}"
    text = f"{where}, {first.kind.replace('_', ' ')}: {first.field.replace('_', ' ')}"
    if first.index is not None:
        text += f" {first.index}"
    about = first.sample or first.group
    return text + (f" of {about}" if about else "")


def _step_table(view: Comparison) -> str:
    """Return a table of steps, from the one before the first difference."""
    begin = next((place for place, step in enumerate(view.steps) if step.differences), None)
    if begin is None:
        return ""
    shown = view.steps[max(0, begin - 1) :][:STEPS]
    head = ("step", *_NOUNS.values(), "samples", "reward A", "reward B", "length A", "length B")
    rows = [_step_row(step) for step in shown]
    left = len(view.steps) - max(0, begin - 1) - len(shown)
    more = f"\nand {left} later steps (--json has all)" if left > 0 else ""
    return "differences and distributions (mean, 10th to 90th percentile)\n" + table(head, rows) + more


def _step_row(step: StepComparison) -> tuple[object, ...]:
    counts = [step.differences.get(kind, 0) for kind in _NOUNS]
    samples = str(step.a.samples) if step.a.samples == step.b.samples else f"{step.a.samples} / {step.b.samples}"
    return (step.step, *counts, samples, *_pair(step.a, step.b, "rewards"), *_pair(step.a, step.b, "lengths"))


def _pair(a: BatchFigures, b: BatchFigures, name: str) -> tuple[str | None, str | None]:
    return _distribution(getattr(a, name)), _distribution(getattr(b, name))


def _distribution(values: Distribution | None) -> str | None:
    return None if values is None else f"{values.mean:.3g} ({values.p10:.3g} to {values.p90:.3g})"
