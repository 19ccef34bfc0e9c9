"""`async_rm` and `batched_async_rm` under slime's signatures, for user code that grades by itself.

They grade here and now, in the process of whoever calls them: the limits that hold are that process's own. A run's
graders (`graders.py`) have processes and limits of theirs. What user code or a test has put in the place of a name of
`slime.rollout.rm_hub` is called.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.dispatch import BOXED, REMOTE, grader_name, load_own, resolve
from slime_events.plugins.sample import Sample
from slime_events.plugins.slime_compat import in_force, replaced

HOME = "slime.rollout.rm_hub"
_LOAD = ("load_function", HOME, "slime.utils.misc")
_FUNCTIONS = {
    "deepscaler": "get_deepscaler_rule_based_reward",
    "dapo": "compute_score_dapo",
    "f1": "f1_score",
    "gpqa": "compute_gpqa_reward",
    "math": "grade_answer_verl",
}
"""slime's functions of its built-in graders."""


async def async_rm(args: Any, sample: Sample, **kwargs: Any) -> Any:
    """What the sample's grader returns: a number, or the dict that it gives.

    The order is `dispatch.resolve`'s. args: `rm_type`, `custom_rm_path` and `rm_url` are read of it, and a user's own
    grader gets it. Raises UnknownGrader (a NotImplementedError), and what the grader raises.
    """
    settings = _settings(args)
    name = grader_name(settings, sample)
    if REMOTE in name:
        return await in_force("remote_rm", HOME)(args, sample)
    path = sample.custom_rm_path or settings.custom_rm_path
    if path and (load := replaced(*_LOAD)):
        returned = load(path)(args, sample, **kwargs)
    elif (other := _replaced_grader(name, sample)) is not None:
        return other()
    else:
        grader = resolve(settings, sample)
        returned = grader.function(args, sample, **kwargs if grader.own else {})
    return await returned if inspect.isawaitable(returned) else returned


def _replaced_grader(name: str, sample: Sample) -> Callable[[], Any] | None:
    """The call of what has replaced a built-in grader's function; None where it has not been."""
    function = replaced(_FUNCTIONS.get(name.removeprefix(BOXED), ""), HOME)
    if function is None:
        return None
    unbox = in_force("extract_boxed_answer", HOME)
    response = (unbox(sample.response) or "") if name.startswith(BOXED) else sample.response
    match name.removeprefix(BOXED):
        case "math":
            return lambda: 1 if function(response, sample.label) else 0
        case "f1":
            return lambda: function(response, sample.label)[0]
        case "gpqa":
            return lambda: function(response, sample.label, metadata=sample.metadata)
    return lambda: function(response, sample.label)


async def batched_async_rm(args: Any, samples: Sequence[Sample], **kwargs: Any) -> list[Any]:
    """One value for each sample: of one call of `args.custom_rm_path` with all of them, else of `async_rm` for each."""
    if path := _settings(args).custom_rm_path:
        load = replaced(*_LOAD)
        function = load(path) if load else load_own(path, None, None).function
        returned = function(args, samples, **kwargs)
        return list(await returned if inspect.isawaitable(returned) else returned)
    one = in_force("async_rm", HOME)
    return list(await asyncio.gather(*(one(args, sample, **kwargs) for sample in samples)))


async def remote_rm(args: Any, sample: Sample, max_retries: int = 10) -> Any:
    """What the judge at `args.rm_url` answers. Raises TimeoutError or RuntimeError where it gives no reward."""
    from slime_events.plugins.rewards.remote import RemoteJudge

    limit_s = _settings(args).rm_timeout
    async with RemoteJudge(args.rm_url, limit_s, tries=max_retries) as judge, asyncio.timeout(limit_s):
        return await judge.ask(grader_name(_settings(args), sample), sample)


def _settings(args: Any) -> RewardSettings:
    names = ("rm_type", "custom_rm_path", "rm_url", "rm_timeout")
    return RewardSettings(**{name: value for name in names if (value := getattr(args, name, None)) is not None})
