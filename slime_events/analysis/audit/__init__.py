"""The audit: is a run's whole history what it has to be? One pass over the log, a small check for each promise.

It folds the log by itself (`ledger.py`) and does not use `slime_events.analysis.model` on purpose: it checks what the
others rely on.
"""
