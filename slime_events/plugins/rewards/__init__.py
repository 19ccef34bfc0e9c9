"""Graders: one per file, a literal registry, and the process pool that runs them under a time limit."""
