"""Dynamic sampling: which groups are worth a training step."""
