"""Every doctored log, by what it is about.

To add one: write `row(title, doctor)` into the table of its check (`row` is `Doctoring` with the check's name): a few
words that no other row has, and a verb of `tests/audit/doctoring.py`, as in

    row("to another version", change(the("step.committed", step=2), version=4), names=("v4", "v3"))

The check must find the records that the verb touched, once each, and nothing else. Where it must find others, or one of
them twice, name them with `located=`; what the sentence has to name with `names=`; what the check has to count with
`counts=`; the log with `log=` where it is not the usual one. Any function of a `Doctored` that gives the records that
it touched is a verb too.
"""

from tests.audit.doctorings import commands, decisions, places, records, rollouts, sessions, training

TABLE = (
    *records.TABLE,
    *rollouts.TABLE,
    *sessions.TABLE,
    *commands.TABLE,
    *decisions.TABLE,
    *training.TABLE,
    *places.TABLE,
)
