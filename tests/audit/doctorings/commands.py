"""Commands of a client: their order, their outcomes, and the steps that they make."""

from __future__ import annotations

from functools import partial

from tests.audit.doctoring import Doctoring, again, change, drop, the

NAME = "tinker-0-m0-00000"
PASSED, STEPPED = the("command.done", command=f"{NAME}2"), the("command.done", command=f"{NAME}3")

row = partial(Doctoring, "commands", log="driven")
TABLE = (
    row("an outcome of no command", again(PASSED, command="x")),
    row("carried out before its turn", drop(the("command.done", command=f"{NAME}1")), (PASSED,), names=(f"{NAME}1",)),
    row("an answer of other weights", change(PASSED, version=7), names=("v7", "v0")),
    row("a batch of other commands", change(the("batch.sealed", step=1), commands=[f"{NAME}5"])),
    row("a step of other datums", change(the("step.committed", step=0), samples=9), names=(9, 2)),
)
