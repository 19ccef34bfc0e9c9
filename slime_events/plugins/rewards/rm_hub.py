"""`async_rm` and `batched_async_rm` under slime's signatures, for user code that grades by itself.

They grade here and now, in the process of whoever calls them: the limits that hold are that process's own. A run's
graders (`graders.py`) have processes and limits of theirs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.dispatch import REMOTE, grader_name, load_own, resolve
from slime_events.plugins.sample import Sample


async def async_rm(args: Any, sample: Sample, **kwargs: Any) -> Any:
    """What the sample's grader returns: a number, or the dict that it gives.

    The order is `dispatch.resolve`'s. args: `rm_type`, `custom_rm_path` and `rm_url` are read of it, and a user's own
    grader gets it. Raises UnknownGrader (a NotImplementedError), and what the grader raises.
    """
    settings = _settings(args)
    name = grader_name(settings, sample)
    if REMOTE in name:
        return await remote_rm(args, sample)
    grader = resolve(settings, sample)
    returned = grader.function(args, sample, **kwargs if grader.own else {})
    return await returned if inspect.isawaitable(returned) else returned


async def batched_async_rm(args: Any, samples: Sequence[Sample], **kwargs: Any) -> list[Any]:
    """One value for each sample: of one call of `args.custom_rm_path` with all of them, else of `async_rm` for each."""
    if path := _settings(args).custom_rm_path:
        returned = load_own(path, None, None).function(args, samples, **kwargs)
        return list(await returned if inspect.isawaitable(returned) else returned)
    return list(await asyncio.gather(*(async_rm(args, sample, **kwargs) for sample in samples)))


async def remote_rm(args: Any, sample: Sample, max_retries: int = 10) -> Any:
    """What the judge at `args.rm_url` answers. Raises TimeoutError or RuntimeError where it gives no reward."""
    from slime_events.plugins.rewards.remote import RemoteJudge

    limit_s = _settings(args).rm_timeout
    async with RemoteJudge(args.rm_url, limit_s, tries=max_retries) as judge, asyncio.timeout(limit_s):
        return await judge.ask(grader_name(_settings(args), sample), sample)


def _settings(args: Any) -> RewardSettings:
    names = ("rm_type", "custom_rm_path", "rm_url", "rm_timeout")
    return RewardSettings(**{name: value for name in names if (value := getattr(args, name, None)) is not None})
