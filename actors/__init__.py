"""Who does it: Ray actors, each a thin shell around a decision or a trainer."""
