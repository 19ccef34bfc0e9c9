"""Commands: a client's calls are carried out in the order of their numbers, and steps are made of them."""

from schemas.batches import BatchSealed
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.steps import StepCommitted
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.core.tokens.trajectory import Fetch
from slime_events.core.training.datums import unpack_datums
from slime_events.loop.commands.order import CommandOrder


class Commands(Check):
    """Fold the order again from the calls alone. fetch: see `Audit`; without it datums are not counted."""

    name = "commands"
    promise = "each carried out once, in the order of their numbers, batches made of them"
    counted = ("commands", "not carried out", "batches", "datums", "steps whose datums were not counted")

    def __init__(self, ledger: Ledger, fetch: Fetch | None) -> None:
        super().__init__(ledger)
        self._fetch, self._order = fetch, CommandOrder()
        self._passes: dict[str, CommandGiven] = {}

    @property
    def applies(self) -> bool:
        return self.ledger.is_driven

    def _on_command_given(self, event: CommandGiven) -> None:
        self.seen["commands"] += 1
        self._order.first = self.ledger.first
        self._order.apply(event)
        if event.kind is CommandKind.FORWARD_BACKWARD and not event.refused:
            self._passes[event.command] = event

    def _on_command_done(self, event: CommandDone) -> None:
        self.seen["not carried out"] += bool(event.error)
        due, first = self._order.due.get(event.command), next(iter(self._order.due), "")
        if due is None:
            self.find(
                "no client called it, or it was carried out before",
                "a client got an answer to a call that it did not make",
            )
            return
        if first != event.command:
            self.find(
                f"{first} comes before it and was not carried out", "it used different weights than its number implies"
            )
            for name in list(self._order.due)[: list(self._order.due).index(event.command)]:
                del self._order.due[name]  # each is found once
        version = due.step + due.ends
        if event.version != version and not due.refused:
            self.find(
                f"its version is v{event.version}, and its number implies v{version}", "it used different weights"
            )
        self._order.apply(event)

    def _on_batch_sealed(self, event: BatchSealed) -> None:
        self.seen["batches"] += 1
        batch = self._order.batches.get(event.step)
        if batch is None or (batch.commands, batch.digest) != (event.commands, event.digest):
            wrong = "its commands or its digest are not those of the calls before it"
            self.find(wrong, "the sealed batch is not the client's")
        self._order.to_seal(event.step + 1)

    def _on_step_committed(self, event: StepCommitted) -> None:
        batch = self.ledger.batches.get(event.step)
        passes = [self._passes.pop(name) for name in (batch.commands if batch else ()) if name in self._passes]
        if self._fetch is None:
            self.seen["steps whose datums were not counted"] += 1
            return
        datums = [datum for call in passes for datum in unpack_datums(self._fetch(call.datums))]
        self.seen["datums"] += len(datums)
        count, tokens = len(datums), sum(datum.total_length for datum in datums)
        if (event.samples, event.tokens) != (count, tokens):
            wrong = f"it has {event.samples} datums of {event.tokens} tokens, and its batch {count} of {tokens}"
            self.find(wrong, "the step trained on something else")
