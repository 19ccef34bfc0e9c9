"""`slime-events console`: pages over a run, live, finished or archived. It reads, and appends nothing."""
