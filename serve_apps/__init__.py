"""The Ray Serve deployment of rollout engines, and the worker of each."""
