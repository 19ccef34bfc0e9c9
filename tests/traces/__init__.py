"""Traces of a past run."""
