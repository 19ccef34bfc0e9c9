"""--buffer-filter-path: the group of the buffer with the lowest reward comes first."""

from __future__ import annotations

from called import note


def hardest(args, rollout_id, buffer, num_samples):
    buffer.sort(key=lambda group: sum(sample.reward for sample in group))
    taken, buffer[:] = buffer[:num_samples], buffer[num_samples:]
    note("hardest", rollout_id=rollout_id, rewards=[sample.reward for sample in taken[0]])
    return taken
