"""Small inputs that once ended a run, in real short runs: `python -m tests.harness.cases`."""
