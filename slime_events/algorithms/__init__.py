"""The mathematics of a training step: rewards to advantages, advantages to a loss, samples to micro batches.

Every formula is slime's, which takes it from the paper named in each file. `estimators`, `reward_norm`, `packing` and
`pass_rate` need no torch, so that processes without torch can import them.
"""
