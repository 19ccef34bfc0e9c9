"""Folds the tokens of rollouts from their chunks."""
