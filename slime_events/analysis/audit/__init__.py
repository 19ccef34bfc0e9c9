"""The audit: does a run's whole history keep its promises? One pass over the log, a small check per promise.

It folds the log by itself (`ledger.py`) and deliberately does not use `slime_events.model`: it checks what
other views rely on.
"""
