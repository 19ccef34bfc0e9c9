"""`CommandOrder`: a client's commands in the order in which they are carried out. A fold, and pure.

command.given, in any order -> by their numbers, without gaps -> each with the step that it falls into
                                                              -> batch.sealed at each optim_step

A run trains one model: the first that was created. What arrives in another order comes out in the same one, and what is
folded twice changes nothing.
"""

from dataclasses import dataclass, field

from schemas.batches import BatchSealed
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.event import Event
from schemas.subjects import of_type
from slime_events.loop.commands.batch import OF_BATCHES, sealed_commands
from storage.log import Readable

FOLDED = (CommandGiven, CommandDone)


@dataclass(frozen=True, slots=True)
class Due:
    """A command whose turn has come. step: the one that it falls into, so the weights that it is carried out on.
    refused: why it is not to be carried out; empty else.
    """

    given: CommandGiven
    step: int
    refused: str = ""


@dataclass(slots=True)
class CommandOrder:
    """first: the run's first step. model: the one that it trains; empty before there is one. due: commands without an
    outcome, in order. batches: the newest steps that the commands have made, until they are forgotten.
    """

    first: int = 0
    model: str = ""
    due: dict[str, Due] = field(default_factory=dict)
    batches: dict[int, BatchSealed] = field(default_factory=dict)
    _next: int = 0
    _sealed: int = 0
    _early: dict[int, CommandGiven] = field(default_factory=dict)
    _open: list[CommandGiven] = field(default_factory=list)
    _done: set[str] = field(default_factory=set)

    @property
    def step(self) -> int:
        """The one that the next command falls into."""
        return self.first + self._sealed

    def apply(self, event: Event) -> None:
        """Fold one event in; others than `FOLDED` are ignored."""
        if isinstance(event, CommandGiven):
            self._give(event)
        elif isinstance(event, CommandDone) and self.due.pop(event.command, None) is None:
            self._done.add(event.command)

    async def restore(self, log: Readable) -> None:
        """Fold what a log holds now."""
        for event_type in ("command.given", "command.done"):
            async for recorded in log.read(1, of_type(log.run, event_type)):
                self.apply(recorded.envelope.event)

    def to_seal(self, step: int) -> list[BatchSealed]:
        """The batches from a step on; those before it are in the log, and forgotten."""
        self.batches = {one: batch for one, batch in self.batches.items() if one >= step}
        return list(self.batches.values())

    def _give(self, event: CommandGiven) -> None:
        if event.kind is CommandKind.CREATE_MODEL and not self.model:
            self.model = event.model
        if event.model != self.model:
            if event.kind is CommandKind.CREATE_MODEL:
                self._settle(event, f"this run trains model {self.model}: start another run for another model")
            return
        if event.number >= self._next:
            self._early.setdefault(event.number, event)
        while (given := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._settle(given)
            if given.kind in OF_BATCHES:
                self._open.append(given)
            if given.kind is CommandKind.OPTIM_STEP:
                self.batches[self.step] = sealed_commands(self.step, self._open)
                self._open, self._sealed = [], self._sealed + 1

    def _settle(self, given: CommandGiven, refused: str = "") -> None:
        """It is due, unless its outcome is known."""
        if given.command in self._done:
            self._done.discard(given.command)
        else:
            self.due.setdefault(given.command, Due(given, self.step, refused))
