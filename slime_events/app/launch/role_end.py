"""How a role ended: what its Ray call raised, in one line, and whether its process is gone."""

from __future__ import annotations

import asyncio
from typing import Any

from schemas.errors import RankLost, SlimeEventsError

GONE = "its process is gone (killed, out of memory, or crashed)"


def is_lost(error: BaseException | None) -> bool:
    """Whether a process is gone, which another can make good; anything else would happen again."""
    from ray.exceptions import RayActorError

    return isinstance(_cause(error), RayActorError | RankLost)


def reason_of(error: BaseException | None) -> str:
    """The user's line of an actor's error: the cause that Ray wraps, without its remote traceback."""
    from ray.exceptions import RayActorError

    cause = _cause(error)
    if isinstance(cause, SlimeEventsError):
        return str(cause)
    if isinstance(cause, RayActorError):
        return GONE
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1] if str(cause).strip() else ''}"


def error_of(task: asyncio.Future[Any]) -> BaseException | None:
    """What ended a role badly; None where it runs, or has ended well."""
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _cause(error: BaseException | None) -> BaseException | None:
    return getattr(error, "cause", None) or error
