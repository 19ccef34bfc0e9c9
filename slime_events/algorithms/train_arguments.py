"""`parse_train`: parse and check the arguments of `slime-events train`, the estimator included."""

from collections.abc import Callable, Sequence

from slime_events.algorithms.estimators import ESTIMATORS, capabilities
from slime_events.core.config.fields import Registered
from slime_events.core.config.flags import ParsedTrain, parse_settings


def registered() -> Registered:
    """Return the estimators and what they declare, for code that reads, checks or shows settings."""
    return Registered({("algorithm", "advantage_estimator"): tuple(ESTIMATORS)}, capabilities())


def parse_train(argv: Sequence[str], *, read: Callable[[str], str] | None = None, complete: bool = True) -> ParsedTrain:
    """Call `parse_settings` with `registered()`."""
    return parse_settings(argv, registered(), read=read, complete=complete)
