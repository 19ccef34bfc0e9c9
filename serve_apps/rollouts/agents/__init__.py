"""Agents that know only a base URL: a session becomes a rollout, and each request becomes a turn."""
