"""Tests of `slime-events what-if`."""
