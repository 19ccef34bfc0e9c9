"""--custom-megatron-init-path: leaves something on `args` for the hooks."""

from __future__ import annotations

from called import note


def init(args) -> None:
    args.stands_still = [step for step in range(args.num_rollout) if step % 2]
    note("init", stands_still=args.stands_still)
