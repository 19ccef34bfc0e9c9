"""Replay: repeats the conductor's decisions over a log and compares them with the recorded ones."""
