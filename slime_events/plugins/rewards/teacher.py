"""A teacher behind an SGLang server, for on-policy distillation: its log-probs of each of a sample's tokens.

    sample -> `reward_func`, or a user's own -> sample.teacher_log_probs -> reward.assigned -> the trainer

slime's names for it are `slime.rollout.on_policy_distillation.reward_func` and `post_process_rewards`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, cast

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
"""Path in an engine's answer to (log-prob, token, text) of each input token; None for the first."""


async def reward_func(args: Any, sample: Sample, **kwargs: object) -> dict[str, Any]:
    """Return the answer of the teacher's `/generate` at `args.rm_url`: log-probs of the sample's tokens at temperature
    1, and no new token. Raises RuntimeError if the answer has none.
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
        raise RuntimeError(f"{args.rm_url} answered without {ANSWER}.{SCORED}: set the /generate of an SGLang server")
    return answer


def post_process_rewards(args: object, samples: Sequence[Sample], **kwargs: object) -> tuple[list[float], list[float]]:
    """Return the rewards of pure distillation, all 0: only the teacher's log-probs train the model.

    A run already has the log-probs (`graded`). If a sample's reward is an engine's answer, as in slime, they are set on
    the sample from it, as a tensor.
    """
    for sample in samples:
        scored = _scored(sample.reward)
        if scored is not None and sample.teacher_log_probs is None:
            import torch  # late: never reached in a run, and the conductor has no torch

            sample.teacher_log_probs = torch.from_numpy(_numbers(_of_response(scored, sample)))  # type: ignore[assignment]
    zeros = [0.0] * len(samples)
    return zeros, zeros


def graded(returned: object, sample: Sample, key: str | None) -> Outcome:
    """Return the outcome of a grader's result, with the teacher's log-probs that the grader set on the sample.

    An engine's answer (a dict with `meta_info.input_token_logprobs`) also supplies them; without a reward key its
    reward is 0. Log-probs that do not fit the response, and an unreadable result, are failures.
    """
    try:
        return _graded(returned, sample, key)
    except BaseException as error:  # a user's object may raise anything when it is read
        return unreadable(error)


def _graded(returned: object, sample: Sample, key: str | None) -> Outcome:
    log_probs, scored = sample.teacher_log_probs, _scored(returned)
    if scored is not None:
        log_probs = _of_response(scored, sample) if log_probs is None else log_probs
        # The answer is as long as the tokens. Its log-probs are recorded as an array instead.
        rest = {name: value for name, value in cast("dict[str, Any]", returned).items() if name != ANSWER}
        returned = rest if key else 0.0
    outcome = value_of(returned, key)
    if log_probs is None or isinstance(outcome, RewardFailure):
        return outcome
    values = _numbers(log_probs, sample.response_length + 1)
    if values.shape != (sample.response_length,) or not np.isfinite(values).all():
        return failure(
            RewardFailureKind.WRONG_TYPE,
            f"the teacher's log-probs are {repr_text(log_probs, 80)}: {sample.response_length} finite numbers are "
            "needed, one for each token of the response",
        )
    return msgspec.structs.replace(outcome, teacher_log_probs=pack_log_probs(values))


def _of_response(scored: list[Any], sample: Sample) -> list[Any]:
    return scored[max(0, len(scored) - sample.response_length) :]


def _numbers(log_probs: Iterable[Any], most: int | None = None) -> npt.NDArray[np.float32]:
    """Return log-probs from numbers, or from an engine's lists that begin with one. Return one NaN for anything else.

    At most `most` items are read: a user's function may leave an endless iterator.
    """
    try:
        first = [item[0] if isinstance(item, list | tuple) else item for item in islice(log_probs, most)]
        return np.asarray(first, np.float32)
    except (TypeError, ValueError, IndexError, OverflowError):
        return np.full(1, np.nan, np.float32)


def _scored(answer: object) -> list[Any] | None:
    """Return the log-probs in an engine's answer; None for anything else."""
    about = answer.get(ANSWER) if isinstance(answer, dict) else None
    scored = about.get(SCORED) if isinstance(about, dict) else None
    return scored if isinstance(scored, list) else None
