"""A teacher behind an SGLang server, for on-policy distillation: what probability it gives each of a sample's tokens.

    sample -> `reward_func`, or a user's own -> sample.teacher_log_probs -> reward.assigned -> the trainer

slime's names for it are `slime.rollout.on_policy_distillation.reward_func` and `post_process_rewards`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.arrays import pack_log_probs
from schemas.rewards import RewardFailureKind
from schemas.text import repr_text
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure, failure, unreadable, value_of
from slime_events.plugins.sample import Sample

ANSWER, SCORED = "meta_info", "input_token_logprobs"
"""Where an engine's answer has (log-prob, token, text) of each token that it was given; None for the first."""


async def reward_func(args: Any, sample: Sample, **kwargs: Any) -> dict[str, Any]:
    """What the teacher's `/generate` at `args.rm_url` answers to the sample's tokens: its log-probs of them, at
    temperature 1, and no new token. Raises RuntimeError where it gives none.
    """
    from slime_events.plugins.rewards.remote import RemoteJudge

    question = {
        "input_ids": list(sample.tokens),
        "sampling_params": {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    limit_s = getattr(args, "rm_timeout", RewardSettings().rm_timeout)
    async with RemoteJudge(args.rm_url, limit_s) as judge:
        answer = await judge.post(question)
    if not isinstance(answer, dict) or _scored(answer) is None:
        raise RuntimeError(f"{args.rm_url} answered without {ANSWER}.{SCORED}: give the /generate of an SGLang server")
    return answer


def post_process_rewards(args: Any, samples: Sequence[Sample], **kwargs: Any) -> tuple[list[float], list[float]]:
    """Rewards of pure distillation, all 0: what is learned is the teacher's.

    A run has its log-probs already (`graded`). Where a sample's reward is an engine's answer, as in slime, they are put
    on the sample from there, as a tensor.
    """
    for sample in samples:
        scored = _scored(sample.reward)
        if scored is not None and sample.teacher_log_probs is None:
            import torch  # no run comes here, and its conductor needs none

            sample.teacher_log_probs = torch.from_numpy(_numbers(_of_response(scored, sample)))  # type: ignore[assignment]
    zeros = [0.0] * len(samples)
    return zeros, zeros


def graded(returned: Any, sample: Sample, key: str | None) -> Outcome:
    """The outcome of what a grader returned, with the teacher's log-probs that it left on the sample.

    An engine's answer (a dict with `meta_info.input_token_logprobs`) gives them too; without a reward key its reward is
    0. Log-probs that do not fit the response are a failure, and so is what cannot be read.
    """
    try:
        return _graded(returned, sample, key)
    except BaseException as error:
        return unreadable(error)


def _graded(returned: Any, sample: Sample, key: str | None) -> Outcome:
    given, scored = sample.teacher_log_probs, _scored(returned)
    if scored is not None:
        given = _of_response(scored, sample) if given is None else given
        # The answer is as long as the tokens: what is used of it is recorded as an array.
        returned = {name: value for name, value in returned.items() if name != ANSWER} if key else 0.0
    outcome = value_of(returned, key)
    if given is None or isinstance(outcome, RewardFailure):
        return outcome
    values = _numbers(given, sample.response_length + 1)
    if values.shape != (sample.response_length,) or not np.isfinite(values).all():
        return failure(
            RewardFailureKind.WRONG_TYPE,
            f"the teacher's log-probs are {repr_text(given, 80)}: {sample.response_length} finite numbers are needed, "
            "one for each token of the response",
        )
    return msgspec.structs.replace(outcome, teacher_log_probs=pack_log_probs(values))


def _of_response(scored: list[Any], sample: Sample) -> list[Any]:
    return scored[max(0, len(scored) - sample.response_length) :]


def _numbers(given: Any, most: int | None = None) -> npt.NDArray[np.float32]:
    """Log-probs as they are, or as an engine gives them, each first in a list; one NaN for anything else.

    most: how many are looked at. What a user's function left may have no end.
    """
    try:
        first = [one[0] if isinstance(one, list | tuple) else one for one in islice(given, most)]
        return np.asarray(first, np.float32)
    except (TypeError, ValueError, IndexError, OverflowError):
        return np.full(1, np.nan, np.float32)


def _scored(answer: Any) -> list[Any] | None:
    """Of an engine's answer; None of anything else."""
    about = answer.get(ANSWER) if isinstance(answer, dict) else None
    scored = about.get(SCORED) if isinstance(about, dict) else None
    return scored if isinstance(scored, list) else None
