"""`Answerer`: makes the rollouts of one maker in a rollout worker. The registry is `makers.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

from schemas.doc import doc
from schemas.rollouts import Maker, RolloutCompleted
from serve_apps.rollouts.generate.custom import CustomGenerate
from serve_apps.rollouts.rollout import Rollout, RolloutContext
from slime_events.core.config.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class MakerSetup:
    """Arguments of every answerer's constructor."""

    custom: Annotated[CustomGenerate | None, doc("Runs generate functions; None: there are none.")] = None
    settings: Annotated[EngineSettings | None, doc("Settings of the engines; None in tests.")] = None


class Answerer(Protocol):
    """Makes rollouts in the process of a rollout worker.

    The worker takes a request from the log, waits until its engine has weights that the request allows, and awaits
    `answer`. It renews the request's lease meanwhile. An error of `answer` becomes `rollout.failed`, and the conductor
    requests the rollout again if the error may pass.
    """

    @property
    def maker(self) -> Maker:
        """Maker of the requests that it answers."""

    @property
    def begins_early(self) -> bool:
        """Whether the engine may generate a client's call before the log has its request. See `EarlyRequests`."""

    @property
    def in_turns(self) -> bool:
        """Whether it appends turns. The fence of its appends then covers all events about the sample."""

    async def answer(self, rollout: Rollout, context: RolloutContext) -> RolloutCompleted | None:
        """Return the end of a rollout, which the worker appends with its reward; None if nothing is to be appended.

        `rollout.trajectory` has the tokens of earlier attempts. `Rollout.add` and `Rollout.end` make the end, and
        `context.append` appends chunks or other events before it. Raises EngineError for a failure that may pass,
        RequestRefused for one that does not, Conflict if another worker has the rollout.
        """


MakeAnswerer = Callable[[MakerSetup], Answerer]
"""Constructor of an answerer. Called once per rollout worker."""
