"""Replay: the conductor's decisions made again over a log, and compared with the recorded ones."""
