"""A user's rollout function: called step by step in the place of the run's own loop; what it returns is events."""
