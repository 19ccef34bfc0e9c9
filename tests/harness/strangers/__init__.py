"""Strangers: clients with some of the credentials of a run's server that do what they must not.

kinds.py       foreign records, by name                  forbidden.py   actions forbidden to producers and viewers
writer.py      a client that sends anything              intruder.py    attacks on a live run
"""
