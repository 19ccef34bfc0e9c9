"""Formats of a model's weights on disk: one file for each, behind one interface."""
