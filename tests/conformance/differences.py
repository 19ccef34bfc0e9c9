"""Where slime's own figure is a defect and we do better on purpose.

Such a case is run as well: what we give must be what stands here and must not be what slime gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """What we give instead, and why."""

    ours: Any
    reason: str


DIFFERENCES: dict[str, Difference] = {
    "reinforce_pp-05": Difference(
        ours=[[0.0]],
        reason="a sample with no trained token has nothing to learn; slime ends the run with an AssertionError",
    ),
    "reward_norm-08": Difference(
        ours={"raw": [1.0, 3.0, 5.0], "rewards": [-0.7071063, 0.7071063, 0.0]},
        reason="a smaller group stays a group; slime normalises the whole batch as one group (#1414, #2230)",
    ),
}
