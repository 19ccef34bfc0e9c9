"""`parse_train`: parse and check the arguments of `slime-events train`, the estimator included."""

from collections.abc import Callable, Sequence

from slime_events.algorithms.estimators import ESTIMATORS, impossible_estimator
from slime_events.algorithms.idle_settings import idle_settings
from slime_events.core.config.fields import Registered
from slime_events.core.config.flags import ParsedTrain, parse_settings


def registered() -> Registered:
    """Return the estimators and their checks, for code that reads or shows settings."""
    return Registered(
        choices={("algorithm", "advantage_estimator"): tuple(ESTIMATORS)},
        impossible=impossible_estimator,
        idle=idle_settings,
    )


def parse_train(argv: Sequence[str], *, read: Callable[[str], str] | None = None) -> ParsedTrain:
    """Call `parse_settings` with `registered()`."""
    return parse_settings(argv, registered(), read=read)
