"""What a generate function returned, as events: one `rollout.completed` for each sample of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.errors import EngineError, PlugPointError
from schemas.ids import sibling_id
from schemas.rollouts import RolloutCompleted, RolloutRequested, StopReason, Timings, WeightSpan
from serve_apps.engine.engine import Tokens
from serve_apps.generate.journal import Ended
from slime_events.core.trajectory import content_digest, mask_older_versions, merge_spans
from slime_events.plugins.rewards.outcome import plain
from slime_events.plugins.sample import Sample, Status

NO_VERSION = -1
_STOPS = {Status.COMPLETED: StopReason.STOP, Status.TRUNCATED: StopReason.LENGTH}


class Made(msgspec.Struct, frozen=True):
    """What all samples of one rollout share. prompt: int32, as requested. turns: the generations with their prompts.
    metadata: as given to the function. tokenizer: the run's.
    """

    request: RolloutRequested
    prompt: Any
    turns: list[tuple[Tokens, Ended]]
    metadata: dict[str, Any]
    engine: str
    tokenizer: Any
    timings: Timings


def completions(returned: Any, made: Made) -> list[RolloutCompleted]:
    """One event per sample. The requested sample comes last, so that its reader has read the others.

    Raises PlugPointError for samples that cannot be trained on, EngineError for an aborted sample.
    """
    samples = returned if isinstance(returned, list) else [returned]
    sample = made.request.sample
    if not samples or not all(isinstance(one, Sample) for one in samples):
        raise PlugPointError(f"the generate function of {sample} returned {returned!r:.120}, not a Sample or a list")
    events = [_completion(one, sibling_id(sample, number), made) for number, one in enumerate(samples)]
    return [*events[1:], events[0]]


def _completion(sample: Sample, name: str, made: Made) -> RolloutCompleted:
    stop = _stop(sample, name, made)
    tokens = np.array(sample.tokens, np.int32)
    cut = len(tokens) - sample.response_length
    if sample.response_length < 1 or cut < 1:
        raise PlugPointError(
            f"sample {name} has {len(tokens)} tokens, {sample.response_length} of them response: it needs a prompt and "
            "a response of one at least (sample.tokens holds both, sample.response_length counts the second)"
        )
    versions, log_probs = _generated(tokens, made.turns)
    mask = _mask(sample, name, versions[cut:])
    oldest = min((span.version for _, turn in made.turns for span in turn.event.spans), default=None)
    unknown = (mask == 1) & (versions[cut:] == NO_VERSION)
    log_probs = _log_probs(sample, name, log_probs[cut:], unknown, mask, versions[cut:])
    spans = _spans(np.where(unknown, made.request.min_version if oldest is None else oldest, versions[cut:]))
    newer = mask_older_versions(spans, len(mask)) if made.request.mask_older else None
    mask = mask if newer is None else mask & newer
    own = None if np.array_equal(tokens[:cut], made.prompt) else tokens[:cut]
    return RolloutCompleted(
        sample=name,
        group=made.request.group,
        attempt=made.request.attempt,
        start=0,
        length=sample.response_length,
        prompt_length=cut,
        stop=stop,
        text=sample.response,
        spans=spans,
        digest=content_digest(tokens[cut:], log_probs),
        engine=made.engine,
        tokens=pack_tokens(tokens[cut:]),
        log_probs=pack_log_probs(log_probs),
        loss_mask=None if mask.all() else pack(mask, "int8"),
        timings=made.timings,
        rollout="" if name == made.request.sample else made.request.sample,
        prompt=None if own is None else pack_tokens(own),
        prompt_text="" if own is None else _prompt_text(sample, own.tolist(), made.tokenizer),
        metadata={
            key: plain(value)
            for key, value in sample.metadata.items()
            if key not in made.metadata or made.metadata[key] != value
        },
    )


def _prompt_text(sample: Sample, tokens: list[int], tokenizer: Any) -> str:
    """The prompt's text as the function gives it where its tokens are these, else the text of the tokens."""
    text = sample.prompt
    if isinstance(text, str) and list(tokenizer.encode(text, add_special_tokens=False)) == tokens:
        return text
    return str(tokenizer.decode(tokens, skip_special_tokens=False, spaces_between_special_tokens=False))


def _stop(sample: Sample, name: str, made: Made) -> StopReason:
    if sample.status is Status.ABORTED:
        raise EngineError(f"the generate function returned sample {name} as aborted")
    if sample.status is Status.FAILED:
        raise PlugPointError(f"the generate function returned sample {name} as failed")
    last = made.turns[-1][1].event.stop if made.turns else None
    return _STOPS.get(sample.status) or last or StopReason.STOP


def _generated(
    tokens: Tokens, turns: Sequence[tuple[Tokens, Ended]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Weight version and log-prob of each token, from the turns whose prompts the tokens continue."""
    versions, log_probs = np.full(len(tokens), NO_VERSION, np.int64), np.zeros(len(tokens), np.float32)
    for prompt, turn in turns:
        begin = len(prompt)
        if begin > len(tokens) or not np.array_equal(tokens[:begin], prompt):
            continue
        room = min(len(turn.tokens), len(tokens) - begin)
        differ = np.nonzero(tokens[begin : begin + room] != turn.tokens[:room])[0]
        kept = int(differ[0]) if len(differ) else room
        log_probs[begin : begin + kept] = turn.log_probs[:kept]
        for span in turn.event.spans:
            versions[begin + span.start : begin + min(span.end, kept)] = span.version
    return versions, log_probs


def _mask(sample: Sample, name: str, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """The function's loss mask, or 1 on the tokens that a turn of this rollout generated."""
    if sample.remove_sample:
        return np.zeros(len(versions), np.int8)
    if sample.loss_mask is None:
        return np.array(versions != NO_VERSION, np.int8)
    if len(sample.loss_mask) != len(versions) or not set(sample.loss_mask) <= {0, 1}:
        raise PlugPointError(
            f"sample {name} has a loss mask of {len(sample.loss_mask)} for a response of {len(versions)} tokens: give "
            "0 or 1 for each"
        )
    return np.array(sample.loss_mask, np.int8)


def _log_probs(
    sample: Sample,
    name: str,
    generated: npt.NDArray[np.float32],
    unknown: npt.NDArray[np.bool_],
    mask: npt.NDArray[np.int8],
    versions: npt.NDArray[np.int64],
) -> npt.NDArray[np.float32]:
    """The function's log-probs, or the turns'; 0 on tokens that are neither trained on nor generated."""
    given = sample.rollout_log_probs
    if given is None:
        if unknown.any():
            raise PlugPointError(
                f"sample {name} trains on {int(unknown.sum())} tokens that no turn generated: mask them, or give "
                "rollout_log_probs"
            )
        return generated
    if len(given) != len(mask):
        raise PlugPointError(f"sample {name} has {len(given)} log-probs for a response of {len(mask)} tokens")
    log_probs = np.array(given, np.float32)
    log_probs[(mask == 0) & (versions == NO_VERSION)] = 0.0
    if not np.isfinite(log_probs).all():
        raise PlugPointError(f"sample {name} has log-probs that are no finite numbers")
    return log_probs


def _spans(versions: npt.NDArray[np.int64]) -> tuple[WeightSpan, ...]:
    """One span per run of equal versions; tokens without a version have none."""
    edges = np.nonzero(np.diff(versions))[0] + 1
    starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(versions)]
    runs = (WeightSpan(start, end, int(versions[start])) for start, end in zip(starts, ends, strict=True))
    return merge_spans((), tuple(run for run in runs if run.version != NO_VERSION))
