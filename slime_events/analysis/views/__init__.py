"""Views of a run as structs: the run and its files, a step, a weight version, a group, a sample.

`show` prints them, and `--json` has their fields, in the same order.
"""
