"""--rollout-data-postprocess-path: halves the advantages of the step."""

from __future__ import annotations

from called import note


def halved(args, rollout_id, rollout_data) -> None:
    note("halved", rollout_id=rollout_id, columns=sorted(rollout_data))
    rollout_data["advantages"] = [advantage / 2 for advantage in rollout_data["advantages"]]
