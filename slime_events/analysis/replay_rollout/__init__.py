"""A recorded rollout, replayed by an engine with the weights that made it: what differs."""
