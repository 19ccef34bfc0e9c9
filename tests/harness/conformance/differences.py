"""Rules for differences on purpose: slime's outcome is a defect, or narrower than ours.

A rule says to which inputs it applies (`applies`) and what our outcome must be then (`holds`). A case that differs from
slime passes only if a rule applies and holds. An outcome equal to slime's needs no rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.dapo import compute_score
from slime_events.plugins.rewards.math import grade_answer
from tests.harness.conformance.case import Case, same
from tests.harness.conformance.continued import Continued, read
from tests.harness.conformance.data import calls_of
from tests.harness.conformance.registry import RUNNERS


@dataclass(frozen=True, slots=True)
class Rule:
    """One difference on purpose. holds: of the case and what we gave."""

    reason: str
    families: frozenset[str]
    applies: Callable[[Case], bool]
    holds: Callable[[Case, Any], bool]


def _rule(reason: str, families: str, applies: Callable[[Case], bool], holds: Callable[[Case, Any], bool]) -> Rule:
    return Rule(reason, frozenset(families.split()), applies, holds)


def _flat(values: Any) -> Iterable[Any]:
    if isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    else:
        yield values


def _rest_is_same(case: Case, got: Any, *apart: str) -> bool:
    """Whether all that slime gave is ours too, but for these entries."""
    return same({name: value for name, value in case.expected.items() if name not in apart}, got, case.tolerance)


# Data.


def _restarts(case: Case) -> bool:
    return {"load", "add"} <= {call.name for call in calls_of(case.input)}


def _buffer_is_kept(case: Case, got: Any) -> bool:
    return got["buffer_after_load"] == got["buffer_before"] > 0 and _rest_is_same(
        case, got, *(name for name in case.expected if name in ("buffer_after_load", "buffer", "buffer_length"))
    )


def _requested(case: Case) -> list[int]:
    return [call.number for call in calls_of(case.input) if call.name == "get"]


def _asks_for_much(case: Case) -> bool:
    return case.raises is None and max(_requested(case)) > case.input.get("dataset_len", 5)


def _gives_all(case: Case, got: Any) -> bool:
    requested = _requested(case)
    return (
        got["returned"] == requested
        and got["n_returned"] in (requested, requested[-1])
        and got["sample_group_index"] == sum(requested)
    )


# The rollout loop.


def _nothing_is_lost(case: Case, got: Any) -> bool:
    if "kept" in got:
        return got["lost"] == 0 and got["kept"] + got["recycled"] == case.input["drawn_groups"]
    where = Counter([*got["kept_group_indices"], *got["dropped_group_indices"], *got["recycled_group_indices"]])
    return where == Counter(range(sum(got["get_samples_calls"])))


def _keeps_surplus(case: Case, got: Any) -> bool:
    """Return whether the outcome has all of slime's, and also the groups that slime throws away."""
    if not set(case.expected.get("recycled_group_indices", ())) <= set(got.get("recycled_group_indices", ())):
        return False
    if any(got.get("recycled_start_rollout_id", ())):  # it is the first step
        return False
    return _nothing_is_lost(case, got) and _rest_is_same(
        case, got, "recycled_group_indices", "recycled_start_rollout_id", "recycled", "lost"
    )


def _in_prompt_order(case: Case, got: Any) -> bool:
    """The kept groups are the first of the drawn that were not dropped."""
    drawn = range(sum(got["get_samples_calls"]))
    dropped = got["dropped_group_indices"]
    good = [group for group in drawn if group not in dropped]
    if sum(got["metrics"].values()) != len(dropped):
        return False
    return _nothing_is_lost(case, got) and got["kept_group_indices"] == good[: case.input["rollout_batch_size"]]


def _masks_newest(case: Case) -> bool:
    """slime masks a token that the weights made which the sample ends on, or one of a sample that is complete."""
    sample, expected = read(case.input), case.expected["loss_mask"]
    return 0 in expected and (sample.is_complete or expected != _mask_of(sample))


def _mask_of(sample: Continued) -> list[int]:
    """1 for each token of the weights that it ends on; for all of a complete one."""
    last = sample.parts[-1].version if sample.parts else 0
    return [int(sample.is_complete or part.version == last) for part in sample.parts for _ in part.tokens]


def _trains_newest(case: Case, got: Any) -> bool:
    newest = _mask_of(read(case.input))[: len(got["loss_mask"])]
    return got["loss_mask"] == newest and _rest_is_same(case, got, "loss_mask")


# The trainer.


def _untrained(case: Case) -> bool:
    masks = case.input.get("loss_masks", case.input.get("mask"))
    rows = masks if masks and isinstance(masks[0], list) else [masks]
    return any(sum(row) == 0 for row in rows) or ("mask" in case.input and sum(masks) == 1)


def _learns_nothing(case: Case, got: Any) -> bool:
    """Whitened values are only centred; a sample that is not trained on has zeros as returns, and the others have what
    they have without it.
    """
    if case.family == "whiten":
        values, mask = case.input["values"], case.input["mask"]
        mean = sum(v * m for v, m in zip(values, mask, strict=True)) / max(1, sum(mask))
        mean = mean if case.input.get("shift_mean", True) else 0.0
        return same([value - mean for value in values], got)
    trained = [bool(sum(mask)) for mask in case.input["loss_masks"]]
    fields = {name: value for name, value in case.input.items() if isinstance(value, list)}
    without = {name: list(compress(value, trained)) for name, value in fields.items()}
    others = RUNNERS[case.family](replace(case, input=case.input | without)) if any(trained) else {"returns": []}
    rows, expected = (each if isinstance(each, dict) else {"returns": each} for each in (got, others))
    left = {name: list(compress(rows[name], trained)) for name in expected}
    free = [row for row, is_trained in zip(rows["returns"], trained, strict=True) if not is_trained]
    return len(rows["returns"]) == len(trained) and same(expected, left) and not any(_flat(free))


def _uneven(case: Case) -> bool:
    params = case.input
    return case.raises == "AssertionError" and len(set(params["rollout_indices"])) >= params["global_batch_size"]


def _kept_samples(case: Case) -> list[list[int]]:
    """The samples of each optimizer step."""
    rollouts, size = case.input["rollout_indices"], case.input["global_batch_size"]
    distinct = list(dict.fromkeys(rollouts))
    steps = [distinct[start : start + size] for start in range(0, len(distinct) - size + 1, size)]
    return [[place for place, rollout in enumerate(rollouts) if rollout in step] for step in steps]


def _each_is_trained_once(case: Case, got: Any) -> bool:
    steps = _kept_samples(case)
    lengths = [len(batches) for batches in got["micro_batch_indices"]]
    per_rank = zip(got["partitions"], got["micro_batch_indices"], strict=True)
    return (
        sorted(_flat(got["partitions"])) == sorted(_flat(steps))
        and all(list(_flat(batches)) == list(range(len(samples))) for samples, batches in per_rank)
        and got["global_batch_sizes"] == [case.input["global_batch_size"]] * len(steps)
        and len(got["num_microbatches"]) == len(steps)
        and max(lengths) <= sum(got["num_microbatches"]) <= sum(lengths)
    )


def _apart(case: Case) -> bool:
    """Whether samples of one rollout do not lie side by side."""
    rollouts = case.input["rollout_indices"]
    runs = [rollout for place, rollout in enumerate(rollouts) if not place or rollouts[place - 1] != rollout]
    return case.raises is None and len(runs) > len(set(rollouts))


def _masks_tokens(case: Case) -> bool:
    return case.raises is None and 0 in _flat(case.input["loss_masks"])


def _same_where_trained(case: Case, got: Any) -> bool:
    """Each array with an entry per token is slime's at the trained tokens, and finite at the others."""
    mask = list(_flat(case.input["loss_masks"]))
    for name, expected in case.expected.items():
        theirs, ours = list(_flat(expected)), list(_flat(got[name]))
        if len(theirs) != len(mask) or len(ours) != len(mask):
            # A share of clipped tokens: slime's counts tokens that are not trained on too, and comes out above 1.
            if not 0 <= ours[0] <= min(theirs[0], len(case.input["loss_masks"])):
                return False
            continue
        trained = [(a, b) for a, b, bit in zip(theirs, ours, mask, strict=True) if bit]
        if not all(same(a, b, case.tolerance) for a, b in trained) or not all(map(math.isfinite, ours)):
            return False
    return True


# Rewards.


def _smaller_group(case: Case) -> bool:
    params = case.input
    return len(params["rewards"]) != params["n_samples_per_prompt"] * params["rollout_batch_size"] or any(
        isinstance(value, float) and math.isnan(value) for value in _flat(case.expected["rewards"])
    )


def _each_group_by_itself(case: Case, got: Any) -> bool:
    """Every group is centred by itself, keeps its order, and has one scale."""
    raw, rewards, size = case.input["rewards"], got["rewards"], case.input["n_samples_per_prompt"]
    for start in range(0, len(raw), size):
        before, after = raw[start : start + size], rewards[start : start + size]
        mean = sum(before) / len(before)
        scales = {round(b / (a - mean), 4) for a, b in zip(before, after, strict=True) if a != mean}
        if len(scales) > 1 or any(scale <= 0 for scale in scales) or abs(sum(after)) > 1e-4:
            return False
    return _rest_is_same(case, got, "rewards")


def _looks_for_its_box(case: Case) -> bool:
    params = case.input
    name = str((params.get("metadata") or {}).get("rm_type") or params["args.rm_type"]).strip()
    return name in ("boxed_math", "boxed_deepscaler", "boxed_dapo")


def _grades_the_box(case: Case, got: Any) -> bool:
    """Return whether the grade is that of an answer with only the box."""
    inner, label = last_boxed(case.input["response"]) or "", str(case.input["label"])
    if isinstance(got, dict):
        return same(compute_score(f"Answer: {inner}", label), got)
    return same(grade_answer(f"\\boxed{{{inner}}}", label), got)


RULES: tuple[Rule, ...] = (
    _rule(
        "groups that were returned to the data source survive a restart; slime does not save its buffer",
        "data_source",
        _restarts,
        _buffer_is_kept,
    ),
    _rule(
        "a draw spans as many epochs as it needs; slime wraps once and returns fewer prompts than requested",
        "data_source",
        _asks_for_much,
        _gives_all,
    ),
    _rule(
        "surplus groups, running or complete, are kept for the next step; slime discards them",
        "dynamic_sampling_loop partial_rollout",
        lambda case: case.raises is None,
        _keeps_surplus,
    ),
    _rule(
        "a slow group keeps its place in prompt order; in slime, groups that end earlier take its place",
        "dynamic_sampling_loop",
        lambda case: bool(case.input.get("slow_groups")),
        _in_prompt_order,
    ),
    _rule(
        "a suspended rollout of several samples returns all of them; slime's abort raises AttributeError",
        "partial_rollout",
        lambda case: case.raises == "AttributeError",
        lambda case, got: got["recycled"] is True and got["samples_of_each"] == [2],
    ),
    _rule(
        "tokens that the newest weights generated are trained on; slime masks all tokens before them",
        "partial_rollout",
        _masks_newest,
        _trains_newest,
    ),
    _rule(
        "a step with at most one token to train on changes nothing; slime ends the run, or scales by 10,000",
        "reinforce_pp compute_advantages whiten",
        _untrained,
        _learns_nothing,
    ),
    _rule(
        "samples that cannot be split evenly are trained anyway; slime ends the run with an AssertionError",
        "dp_schedule",
        _uneven,
        _each_is_trained_once,
    ),
    _rule(
        "samples of a rollout that are apart keep the batch's order; slime moves them together",
        "dp_schedule",
        _apart,
        _each_is_trained_once,
    ),
    _rule(
        "KL, advantages and clip fraction exclude tokens that are not trained on; slime includes them",
        "opsm compute_advantages",
        _masks_tokens,
        _same_where_trained,
    ),
    _rule(
        "each group is normalised by itself; slime treats a batch of unequal groups as one, or returns NaN",
        "reward_norm",
        _smaller_group,
        _each_group_by_itself,
    ),
    _rule(
        "boxed_ passes a grader the box or Answer: line that it expects; in slime the grader never finds it",
        "rm_dispatch",
        _looks_for_its_box,
        _grades_the_box,
    ),
)
"""The table: at most twelve."""
