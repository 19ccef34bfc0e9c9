"""What a step learns from: rewards to advantages, advantages to a loss, samples to micro batches.

Every formula is slime's (which takes them from the papers named in each file). `estimators`, `reward_norm`, `packing`
and `pass_rate` need no torch: the processes that only decide import those alone.
"""
