"""`CommandOrder`: a client's commands in the order in which they are carried out. A fold, and pure.

command.given, in any order -> by their numbers, without gaps -> each with the step that it falls into
                                                              -> batch.sealed by each that makes a step

A run trains one model at a time: the one that was created last, and what an earlier one asks after that is refused.
What arrives in another order comes out in the same one, and what is folded twice changes nothing.
"""

from dataclasses import dataclass, field

from schemas.batches import BatchSealed
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.event import Event
from schemas.subjects import of_type
from slime_events.loop.commands.batch import BEGINS, sealed_commands
from storage.log import Readable

FOLDED = (CommandGiven, CommandDone)


@dataclass(frozen=True, slots=True)
class Due:
    """A command whose turn has come. step: the one that it falls into, so the weights that it is carried out on. ends:
    it makes that step, so that it is over when the step is committed. refused: why it is not to be carried out; empty
    else.
    """

    given: CommandGiven
    step: int
    ends: bool = False
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
    _before: set[str] = field(default_factory=set)

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
        if event.model in self._before:
            self._settle(event, refused=self._refusal(event.model))
            return
        if event.model != self.model:
            if event.kind not in BEGINS or event.number:
                return  # of a model that nobody has created
            self._replace(event.model)
        if event.number >= self._next:
            self._early.setdefault(event.number, event)
        while (given := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._take(given)

    def _replace(self, model: str) -> None:
        """A model is created: whatever the one before it still asks for comes too late."""
        before, early = self.model, self._early.values()
        self.model, self._next, self._early, self._open = model, 0, {}, []
        if before:
            self._before.add(before)
        for given in early:
            self._settle(given, refused=self._refusal(before))

    def _refusal(self, model: str) -> str:
        return f"model {model} was replaced: a run trains one model at a time, and {self.model} is its newest"

    def _take(self, given: CommandGiven) -> None:
        if given.refused:
            self._settle(given, refused=given.refused)
            return
        # The first model of a run is there already: it begins with the run's own weights.
        begins = given.kind in BEGINS and bool(self._before or given.kind is CommandKind.LOAD_WEIGHTS)
        ends = begins or given.kind is CommandKind.OPTIM_STEP
        self._settle(given, ends=ends)
        if begins:
            self._open = []
        if ends or given.kind is CommandKind.FORWARD_BACKWARD:
            self._open.append(given)
        if ends:
            self.batches[self.step] = sealed_commands(self.step, self._open)
            self._open, self._sealed = [], self._sealed + 1

    def _settle(self, given: CommandGiven, *, ends: bool = False, refused: str = "") -> None:
        """It is due, unless its outcome is known."""
        if given.command in self._done:
            self._done.discard(given.command)
        else:
            self.due.setdefault(given.command, Due(given, self.step, ends, refused))
