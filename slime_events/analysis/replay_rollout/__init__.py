"""Replays a recorded rollout on an engine with the weights that made it, and shows the differences."""
