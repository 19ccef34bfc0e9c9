"""`make docs-run`: every command and config of the pages and examples that starts a run, started."""
