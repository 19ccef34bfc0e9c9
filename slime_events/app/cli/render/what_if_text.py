"""Predictions of a run under other settings for a terminal."""

from collections.abc import Iterable

from slime_events.analysis.what_if.figures import Figures
from slime_events.analysis.what_if.prediction import Prediction, WhatIf
from slime_events.app.cli.render.text import paragraphs, table

HEAD = (
    "",
    "step time",
    "engines idle",
    "graders idle",
    "trainer idle",
    "staleness mean",
    "max",
    "length bias",
    "tokens/s",
)


def what_if_text(view: WhatIf) -> str:
    """Return the figures as a table, the models, and what they do not know."""
    rows = [_row("seen", view.seen), _row("its own settings, predicted", view.own)]
    rows += [
        _row(_name(prediction), prediction.figures, prediction.step_seconds_range) for prediction in view.predictions
    ]
    return paragraphs(
        _head(view),
        table(HEAD, rows),
        _models(view),
        _listed("predicted beyond what the run has shown:", _beyond(view.predictions)),
        _listed("what these predictions cannot know:", view.unknown),
    )


def _head(view: WhatIf) -> str:
    so_far = "" if view.ended else " so far; it has not ended"
    return f"run {view.run}: {view.steps} steps{so_far}"


def _name(prediction: Prediction) -> str:
    pairs = prediction.changed.items()
    return " ".join(f"{'--engines' if name == 'rollout_num_engines' else _flag(name)} {value}" for name, value in pairs)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _row(name: str, figures: Figures, between: tuple[float, float] | None = None) -> tuple[object, ...]:
    """Return a row. between: least and most step time [s]."""
    step = f"{figures.step_seconds:.3f} s"
    return (
        name,
        step if between is None else f"{step} ({between[0]:.3f} to {between[1]:.3f})",
        _share(figures.engines_idle),
        _share(figures.graders_idle),
        _share(figures.trainer_idle),
        f"{figures.staleness_mean:.2f}",
        figures.staleness_max,
        f"{100 * figures.length_bias:+.1f}%",
        f"{figures.tokens_per_s:.0f}",
    )


def _share(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.0f}%"


def _models(view: WhatIf) -> str:
    """Return the fits in words, with the range that they were fitted in."""
    engines, trainer = view.engines, view.trainer
    per_token = f"{_ms(engines.per_token)} + {_ms(engines.per_running)} for each running rollout"
    if engines.per_training:
        per_token += f" + {_ms(engines.per_training)} while the trainer trains"
    if engines.chunks:
        per_token += (
            f"; each chunk delays it by {_ms(engines.per_chunk)} "
            f"({_ms_value(engines.least_per_chunk):.3g} to {_ms(engines.most_per_chunk)})"
        )
    fixed = f"{_ms(engines.per_prompt)} for its prompt" + (
        f", {_ms(engines.per_rollout)} fixed" if engines.per_rollout else ""
    )
    moving = "of samples with an advantage" if trainer.moving_only else "of all samples"
    return "\n".join(
        (
            f"engine: a rollout takes {fixed}, and per token {per_token}",
            f"  from {engines.rollouts:,} rollouts, at most {engines.most_running:,} at once on an engine; mean error "
            f"of a rollout {engines.error:.0%}",
            f"trainer: a step takes {trainer.per_step:.3f} s + {1000 * _ms_value(trainer.per_token):.3g} ms per 1,000 "
            f"tokens {moving}",
            f"  from steps of {trainer.fewest_tokens:,} to {trainer.most_tokens:,} such tokens; mean error of a step "
            f"{trainer.error:.0%}",
        )
    )


def _ms(seconds: float) -> str:
    return f"{_ms_value(seconds):.3g} ms"


def _ms_value(seconds: float) -> float:
    return 1000 * seconds


def _beyond(predictions: Iterable[Prediction]) -> list[str]:
    return [f"{_name(prediction)}: {'; '.join(prediction.beyond)}" for prediction in predictions if prediction.beyond]


def _listed(head: str, lines: Iterable[str]) -> str:
    return "\n".join((head, *(f"  - {line}" for line in lines))) if lines else ""
