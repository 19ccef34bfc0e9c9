"""Views of a run as structs: the run and its files, a step, a weight version, a group, a sample.

`show` prints them, and `--json` has their fields, in the same order. Views of other questions are in their rooms:
`MomentView` and `MomentDiff` in `timetravel`, `Lineage` in `lineage`, `Report` in `audit`.

read_run       reads the view of a run
read_records   reads the view of a step, weight version, group or sample
"""
