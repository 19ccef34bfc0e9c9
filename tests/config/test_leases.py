"""Test the default lease of requests: renewals do not grow with the engines of a large run."""

from __future__ import annotations

import pytest

from slime_events.core.config.engine import LEASE_S, LEASES_PER_S, EngineSettings, lease_of


@pytest.mark.parametrize(("engines", "lease_s"), [(1, 5.0), (64, 5.0), (2_000, 5.0), (4_000, 10.0), (10_000, 25.0)])
def test_a_lease_grows_with_the_engines(engines: int, lease_s: float) -> None:
    assert lease_of(engines) == EngineSettings(rollout_num_gpus=engines).lease_s == lease_s
    assert lease_s == LEASE_S or engines / lease_s == LEASES_PER_S
