"""Folds the sessions of agents from a run's log, and returns the prompts and requests of their turns."""
