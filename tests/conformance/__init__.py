"""Conformance: slime's own figures, case by case (`python -m tests.conformance [FILE]`)."""
