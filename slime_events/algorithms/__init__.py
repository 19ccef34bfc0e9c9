"""What a step learns from: rewards to advantages, advantages to a loss, samples to micro batches.

Every formula is slime's (which takes them from the papers named in each file). `reward_norm`, `packing`, `pass_rate`,
`repetition` and `rollout_stats` need no torch: the processes that only decide import those alone.
"""
