"""Lineage: the origin of a weight version, and the use of a sample. Reads only the events that it needs."""
