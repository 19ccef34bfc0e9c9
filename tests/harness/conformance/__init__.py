"""Conformance: slime's own figures, case by case (`python -m tests.harness.conformance [FILE]`)."""
