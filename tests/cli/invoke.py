"""`command`: a command of `slime-events` whose errors are raised, in this process."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from slime_events.app.cli.main import parse, run_command


def command(name: str) -> Callable[[Sequence[str]], int]:
    """It, by name; takes the other arguments."""
    return lambda words: run_command([name, *words])


def arguments(*words: str) -> argparse.Namespace:
    """The parsed arguments of a command line."""
    parsed = parse(words)
    assert parsed is not None
    return parsed
