"""--custom-megatron-before-train-step-hook-path: in some steps the weights stand still."""

from __future__ import annotations

from called import note


def stand_still(args, rollout_id, step_id, model, optimizer, opt_param_scheduler) -> None:
    still = rollout_id in getattr(args, "stands_still", [1])
    note("stand_still", rollout_id=rollout_id, step_id=step_id, still=still)
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if still else args.lr
