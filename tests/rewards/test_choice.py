"""Which function grades a sample, and where: the one decision."""

from __future__ import annotations

from typing import Any

import pytest

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.choice import Choice, Place, choose
from slime_events.plugins.sample import Sample


@pytest.mark.parametrize(
    ("settings", "sample", "choice"),
    [
        ({"rm_type": "exact"}, {}, Choice("exact", place=Place.INLINE)),
        ({"rm_type": " math "}, {}, Choice("math")),
        ({"rm_type": "boxed_exact"}, {}, Choice("boxed_exact")),
        ({"rm_type": "boxed_remote_rm"}, {}, Choice("boxed_remote_rm", place=Place.JUDGE)),
        ({"rm_type": "outside"}, {}, Choice("outside", place=Place.OUTSIDE)),
        ({"rm_type": "unheard_of"}, {}, Choice("unheard_of")),
        ({}, {}, Choice()),
        ({"rm_type": "math"}, {"metadata": {"rm_type": "exact"}}, Choice("exact", place=Place.INLINE)),
        ({"rm_type": "exact"}, {"metadata": {"rm_type": ""}}, Choice("exact", place=Place.INLINE)),
        ({"rm_type": "exact"}, {"metadata": "rm_type"}, Choice("exact", place=Place.INLINE)),
        ({"custom_rm_path": "own.py"}, {"metadata": {"rm_type": "exact"}}, Choice("own.py", is_own=True)),
        ({"custom_rm_path": "own.py"}, {"custom_rm_path": "theirs.py"}, Choice("theirs.py", is_own=True)),
        ({"rm_type": "exact"}, {"custom_rm_path": "exact"}, Choice("exact", is_own=True)),
    ],
)
def test_the_first_that_is_set_decides(settings: dict[str, Any], sample: dict[str, Any], choice: Choice) -> None:
    assert choose(RewardSettings(**settings), Sample(**sample)) == choice
