"""Strangers: whoever holds the credentials of a run's server, or some of them, and does what he should not.

kinds.py       records that are no events, by name       forbidden.py   what producers and viewers may not do
writer.py      a client that sends anything              intruder.py    in a run that is on: `python -m tests.strangers`
"""
