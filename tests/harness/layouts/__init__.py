"""Layouts of the trainer: each trains as one rank does."""
