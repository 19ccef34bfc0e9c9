"""Programs that test the whole system, each run with `python -m tests.harness.NAME`. See docs/testing.md."""
