"""`EngineAnswerer`: rollouts by the worker's own engine, and by generate functions that use it."""

from msgspec.structs import replace

from schemas.event import Purpose
from schemas.rollouts import Maker, RolloutCompleted, StopReason
from serve_apps.rollouts.answerer import MakerSetup
from serve_apps.rollouts.rollout import Rollout, RolloutContext, generate_request, stream


class EngineAnswerer:
    """Generates a rollout, or runs the generate function of its run or prompt."""

    maker = Maker.ENGINE
    begins_early = True

    def __init__(self, setup: MakerSetup) -> None:
        self._custom = setup.custom
        self.in_turns = setup.custom is not None

    async def answer(self, rollout: Rollout, context: RolloutContext) -> RolloutCompleted | None:
        """Return the end of the rollout. None: it is suspended, or a generate function has made it."""
        is_call = rollout.request.purpose is Purpose.CALL  # one generation, never a generate function
        if self._custom is not None and not is_call and await self._custom.makes(rollout.request):
            await self._custom.make(rollout, context)
            return None
        last = None
        if not context.is_suspended():
            request = generate_request(rollout.request, context.rid, await context.prompt(), rollout.trajectory.tokens)
            last = await stream(context, request, rollout, lambda chunk: context.append([chunk]))
        if last is None:
            await context.append([rollout.suspended()])
            return None
        end = rollout.end(last.finish or StopReason.STOP, last.text or "", last.experts)
        return replace(end, meta=last.meta) if is_call else end
