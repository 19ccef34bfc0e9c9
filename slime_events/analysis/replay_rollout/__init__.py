"""A recorded rollout, made again by an engine with the weights that it had: what differs."""
