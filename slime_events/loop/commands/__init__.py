"""Runs that a client drives: the order of its commands, and the steps that they make."""
