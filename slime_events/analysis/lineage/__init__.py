"""Lineage: what a weight version was made of, and what became of a sample. Reads what it needs and no more."""
