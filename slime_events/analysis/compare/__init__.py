"""Comparison of two runs: the first difference, and the differences and distributions of each step."""
