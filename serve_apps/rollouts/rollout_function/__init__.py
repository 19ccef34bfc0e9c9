"""A user's rollout function: called step by step instead of the run's own loop. Its result is recorded as events."""
