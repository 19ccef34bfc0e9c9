"""slime's rollout loop for users' rollout functions."""
