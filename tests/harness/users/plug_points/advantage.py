"""--custom-advantage-function-path: the same advantage for every token of every sample."""

from __future__ import annotations

import torch
from called import note


def level(args, rollout_data) -> None:
    parts = [torch.full_like(log_probs, 0.5) for log_probs in rollout_data["rollout_log_probs"]]
    note("level", samples=len(parts), columns=sorted(rollout_data))
    rollout_data["advantages"] = parts
    rollout_data["returns"] = parts
