"""Holds what the trainer takes and returns: batches, a client's datums, results of steps and checkpoints."""
