"""`async_rm` and `batched_async_rm` with slime's signatures, for user code that grades samples itself.

They grade immediately, in the caller's process and under its limits. A run's graders (`dispatcher.py`) have processes
and limits of their own. If user code or a test has replaced a name of `slime.rollout.rm_hub`, the replacement is
called.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.choice import Place, choose, grader_name
from slime_events.plugins.rewards.registry import BOXED, load_own, resolve
from slime_events.plugins.sample import Sample
from slime_events.plugins.slime.aliases import in_force, replaced

HOME = "slime.rollout.rm_hub"
_LOAD = ("load_function", HOME, "slime.utils.misc")
_FUNCTIONS = {
    "deepscaler": "get_deepscaler_rule_based_reward",
    "dapo": "compute_score_dapo",
    "f1": "f1_score",
    "gpqa": "compute_gpqa_reward",
    "math": "grade_answer_verl",
}
"""slime's functions for its built-in graders."""


async def async_rm(args: object, sample: Sample, **kwargs: object) -> Any:
    """Return the value of the sample's grader: a number, or a dict.

    `choose` chooses the grader. `args` supplies `rm_type`, `custom_rm_path` and `rm_url`, and is passed to a
    user's own grader. Raises UnknownGrader (a NotImplementedError), and the grader's own exceptions.
    """
    settings = _settings(args)
    choice = choose(settings, sample)
    if choice.place is Place.JUDGE:
        return await in_force("remote_rm", HOME)(args, sample)
    if choice.is_own and (load := replaced(*_LOAD)):
        returned = load(choice.name)(args, sample, **kwargs)
    elif not choice.is_own and (other := _replaced_grader(choice.name, sample)) is not None:
        return other()
    else:
        grader = resolve(settings, sample)
        returned = grader.function(args, sample, **kwargs if grader.own else {})
    return await returned if inspect.isawaitable(returned) else returned


def _replaced_grader(name: str, sample: Sample) -> Callable[[], Any] | None:
    """Return the call of the replacement of a built-in grader's function; None without a replacement."""
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


async def batched_async_rm(args: object, samples: Sequence[Sample], **kwargs: object) -> list[Any]:
    """Return one value for each sample.

    If `args.custom_rm_path` is set, it is called once with all samples; otherwise `async_rm` is called for each.
    """
    if path := _settings(args).custom_rm_path:
        load = replaced(*_LOAD)
        function = load(path) if load else load_own(path, None, None).function
        returned = function(args, samples, **kwargs)
        return list(await returned if inspect.isawaitable(returned) else returned)
    grade = in_force("async_rm", HOME)
    return list(await asyncio.gather(*(grade(args, sample, **kwargs) for sample in samples)))


async def remote_rm(args: Any, sample: Sample, max_retries: int = 10) -> object:
    """Return the answer of the judge at `args.rm_url`. Raises TimeoutError or RuntimeError if it gives no reward."""
    from slime_events.plugins.rewards.remote import RemoteJudge

    limit_s = _settings(args).rm_timeout
    async with RemoteJudge(args.rm_url, limit_s, tries=max_retries) as judge, asyncio.timeout(limit_s):
        return await judge.ask(grader_name(_settings(args), sample), sample)


def _settings(args: object) -> RewardSettings:
    names = ("rm_type", "custom_rm_path", "rm_url", "rm_timeout")
    return RewardSettings(**{name: value for name in names if (value := getattr(args, name, None)) is not None})
