"""Graders: one a file, a literal registry, and the process pool they run in under a time limit."""
