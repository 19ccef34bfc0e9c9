"""`Record`: what the log holds of one rollout's turns. A generate function that is run again is answered from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import GenerateDiffers, StorageError, ToolFailed
from schemas.rollouts import RolloutProgressed, WeightSpan
from schemas.turns import ToolCall, TurnBegun, TurnRecorded, TurnRole
from slime_events.core.trajectory import Fetch, merge_spans


@dataclass(slots=True)
class Draft:
    """The chunks of one generation. tokens: int32 [n]; log_probs: float32 [n]; spans: over them."""

    tokens: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    log_probs: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    spans: tuple[WeightSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that has ended, with all its tokens; those of a tool's are none."""

    event: TurnRecorded
    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]

    def result(self) -> Any:
        """What a tool returned; what it raised is raised again, as ToolFailed."""
        if self.event.error:
            raise ToolFailed(self.event.error)
        return self.event.result


@dataclass(frozen=True, slots=True)
class InFlight:
    """A turn that had begun when its engine was lost. draft: what it had generated."""

    index: int
    draft: Draft
    call: ToolCall | None = None


class Record:
    """The fold of a sample's turn events. Each turn answers once, to whoever asks for the same as before.

    generated: tokens that the log holds, of all its turns. next_index: of a turn that is new.
    """

    def __init__(self, sample: str, fetch: Fetch) -> None:
        self._sample, self._fetch = sample, fetch
        self._begun: dict[int, TurnBegun] = {}
        self._drafts: dict[int, Draft] = {}
        self._ended: dict[int, Ended] = {}
        self.generated = self.next_index = 0

    def apply(self, event: object) -> None:
        """Fold one event in; what is said of other things is passed over."""
        if isinstance(event, TurnBegun):
            self._begun[event.index] = event
            self.next_index = max(self.next_index, event.index + 1)
        elif isinstance(event, RolloutProgressed) and event.turn is not None:
            self._progress(event, event.turn)
        elif isinstance(event, TurnRecorded):
            self._end(event)
            self.next_index = max(self.next_index, event.index + 1)

    def _progress(self, event: RolloutProgressed, turn: int) -> None:
        draft = self._drafts.setdefault(turn, Draft())
        self._check_start(turn, event.start, draft)
        draft.tokens = np.concatenate([draft.tokens, self._fetch(event.tokens)])
        draft.log_probs = np.concatenate([draft.log_probs, self._fetch(event.log_probs)])
        draft.spans = merge_spans(draft.spans, event.spans)
        self.generated += event.tokens.n

    def _end(self, event: TurnRecorded) -> None:
        self._forget_begun(event.asked)
        draft = self._drafts.pop(event.index, Draft())
        self._check_start(event.index, event.start, draft)
        tokens = np.concatenate([draft.tokens, self._fetch(event.tokens)])
        log_probs = np.concatenate([draft.log_probs, self._fetch(event.log_probs)])
        self._ended[event.index] = Ended(event, tokens, log_probs)
        self.generated += event.tokens.n

    def _forget_begun(self, asked: str) -> None:
        """One that was begun again and again, by engines that were lost in turn, is one turn."""
        self._begun = {index: event for index, event in self._begun.items() if event.asked != asked}

    def _check_start(self, turn: int, start: int, draft: Draft) -> None:
        if start != len(draft.tokens):
            raise StorageError(
                f"rollout {self._sample}: tokens of turn {turn} start at {start}, but the log holds "
                f"{len(draft.tokens)} before them"
            )

    def claim(self, asked: str, what: str) -> Ended | InFlight | None:
        """The turn that was asked for in the same words, or None where this one is new.

        asked: digest of what is asked for; what: the same for people. Raises GenerateDiffers where the log says that
        something else was asked for at this point; turns that overlapped may come in another order.
        """
        for index, ended in self._ended.items():
            if ended.event.asked == asked:
                return self._ended.pop(index)
        if begun := [event for event in self._begun.values() if event.asked == asked]:
            self._forget_begun(asked)
            return InFlight(begun[-1].index, self._drafts.pop(begun[-1].index, Draft()), begun[-1].call)
        first = next((turn for turn in self._left() if not turn.overlapping), None)
        if first is not None:
            raise GenerateDiffers(
                f"rollout {self._sample}: run again after a crash, its generate function asks for {what} where the log "
                f"has turn {first.index}, {_described(first)}: it must do the same for the same answers (no clock, no "
                "randomness; tools through session.call)"
            )
        return None

    def check_all_claimed(self) -> None:
        """Raise GenerateDiffers where the function has ended and never asked for a turn that the log holds."""
        if left := self._left():
            raise GenerateDiffers(
                f"rollout {self._sample}: run again after a crash, its generate function ended without asking for turn "
                f"{left[0].index}, {_described(left[0])}, which the log holds"
            )

    def _left(self) -> list[TurnBegun | TurnRecorded]:
        events: list[TurnBegun | TurnRecorded] = [*self._begun.values()]
        events += [ended.event for ended in self._ended.values()]
        return sorted(events, key=lambda event: event.index)


def _described(event: TurnBegun | TurnRecorded) -> str:
    if event.role is TurnRole.TOOL and event.call is not None:
        return described(event.call)
    return "a generation"


def described(call: ToolCall) -> str:
    """A call in a message, with as much of its arguments as fits."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({arguments if len(arguments) <= 120 else arguments[:117] + '...'})"
