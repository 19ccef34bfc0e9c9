"""Tests of the lanes of a timeline."""
