"""`parse_train`: the words after `slime-events train` become settings that a run can start with, estimator included."""

from collections.abc import Callable, Sequence

from slime_events.algorithms.estimators import ESTIMATORS, impossible_estimator
from slime_events.algorithms.idle_settings import idle_settings
from slime_events.core.config.fields import Registered
from slime_events.core.config.flags import ParsedTrain, parse_settings


def registered() -> Registered:
    """The estimators, for whatever reads or shows settings."""
    return Registered(
        choices={("algorithm", "advantage_estimator"): tuple(ESTIMATORS)},
        impossible=impossible_estimator,
        idle=idle_settings,
    )


def parse_train(argv: Sequence[str], *, read: Callable[[str], str] | None = None) -> ParsedTrain:
    """As `parse_settings`, with the registries that there are."""
    return parse_settings(argv, registered(), read=read)
