"""Rollout engines and all ways to use them: as a Ray Serve deployment, as makers of rollouts, and over HTTP."""
