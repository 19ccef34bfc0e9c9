"""Makers of rollouts: the worker beside an engine, generate functions, rollout functions, agents and recorded runs."""
