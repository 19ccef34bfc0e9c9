"""A producer's side of a run: what it sends, and the answers that it gets."""
