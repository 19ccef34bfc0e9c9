"""slime's own examples, written again from what they need of its API: a folder each, run unchanged."""
