"""Who serves it: Ray Serve deployments, the rollout engines."""
