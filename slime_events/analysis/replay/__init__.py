"""Replay: the conductor's decisions made again over what a log recorded, and compared with what it said."""
