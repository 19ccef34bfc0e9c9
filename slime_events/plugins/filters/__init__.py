"""Dynamic sampling: filters that choose the groups of a training step."""
