"""A run that a client drives: its commands in order, and the steps that they make."""
