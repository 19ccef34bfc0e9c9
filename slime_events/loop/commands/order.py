"""`CommandOrder`: a client's commands in the order of execution. A fold, and pure.

command.given, in any order -> by number, without gaps -> each with the step that it belongs to
                                                       -> batch.sealed for each command that makes a step

A run trains one model at a time, the newest: later commands for an earlier model are refused. Commands that arrive in a
different order are executed in the same order, and folding a command twice changes nothing.
"""

from dataclasses import dataclass, field
from typing import Annotated

from schemas.batches import BatchSealed
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.doc import doc
from schemas.event import Event
from schemas.subjects import of_type
from slime_events.loop.commands.batch import BEGINS, sealed_commands
from storage.log import Readable

FOLDED = (CommandGiven, CommandDone)


@dataclass(frozen=True, slots=True)
class Due:
    """A command to execute now."""

    command: CommandGiven
    step: Annotated[int, doc("step that it belongs to, which defines the weights that it uses")]
    ends: Annotated[bool, doc("it makes the step, so it is done when the step is committed")] = False
    refused: Annotated[str, doc("why it must not be executed; empty: execute it")] = ""


@dataclass(slots=True)
class CommandOrder:
    """The state of a client's commands."""

    first: Annotated[int, doc("first step of the run")] = 0
    model: Annotated[str, doc("model that the run trains; empty: none yet")] = ""
    due: Annotated[dict[str, Due], doc("commands without an outcome, in order")] = field(default_factory=dict)
    batches: Annotated[dict[int, BatchSealed], doc("newest steps of the commands, until `to_seal` drops them")] = field(
        default_factory=dict
    )
    _next: int = 0
    _sealed: int = 0
    _early: dict[int, CommandGiven] = field(default_factory=dict)
    _open: list[CommandGiven] = field(default_factory=list)
    _done: set[str] = field(default_factory=set)
    _before: set[str] = field(default_factory=set)

    @property
    def step(self) -> int:
        """The step that the next command belongs to."""
        return self.first + self._sealed

    def apply(self, event: Event) -> None:
        """Fold an event in. Types outside `FOLDED` are ignored."""
        if isinstance(event, CommandGiven):
            self._give(event)
        elif isinstance(event, CommandDone) and self.due.pop(event.command, None) is None:
            self._done.add(event.command)

    async def restore(self, log: Readable) -> None:
        """Fold in all commands of a log."""
        for event_type in ("command.given", "command.done"):
            async for recorded in log.read(1, of_type(log.run, event_type)):
                self.apply(recorded.envelope.event)

    def to_seal(self, step: int) -> list[BatchSealed]:
        """Return the batches from `step` on, and forget the earlier ones, which are in the log."""
        self.batches = {number: batch for number, batch in self.batches.items() if number >= step}
        return list(self.batches.values())

    def _give(self, event: CommandGiven) -> None:
        if event.model in self._before:
            self._settle(event, refused=self._refusal(event.model))
            return
        if event.model != self.model:
            if event.kind not in BEGINS or event.number:
                return  # of an unknown model
            self._replace(event.model)
        if event.number >= self._next:
            self._early.setdefault(event.number, event)
        while (command := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._take(command)

    def _replace(self, model: str) -> None:
        """Replace the model. Commands for the previous model that are still waiting are refused."""
        before, early = self.model, self._early.values()
        self.model, self._next, self._early, self._open = model, 0, {}, []
        if before:
            self._before.add(before)
        for command in early:
            self._settle(command, refused=self._refusal(before))

    def _refusal(self, model: str) -> str:
        return f"model {model} was replaced: a run trains one model at a time, and {self.model} is its newest"

    def _take(self, command: CommandGiven) -> None:
        if command.refused:
            self._settle(command, refused=command.refused)
            return
        # The first model exists already: it begins with the run's own weights.
        begins = command.kind in BEGINS and bool(self._before or command.kind is CommandKind.LOAD_WEIGHTS)
        ends = begins or command.kind is CommandKind.OPTIM_STEP
        self._settle(command, ends=ends)
        if begins:
            self._open = []
        if ends or command.kind is CommandKind.FORWARD_BACKWARD:
            self._open.append(command)
        if ends:
            self.batches[self.step] = sealed_commands(self.step, self._open)
            self._open, self._sealed = [], self._sealed + 1

    def _settle(self, command: CommandGiven, *, ends: bool = False, refused: str = "") -> None:
        """Make a command due, unless its outcome is known."""
        if command.command in self._done:
            self._done.discard(command.command)
        else:
            self.due.setdefault(command.command, Due(command, self.step, ends, refused))
