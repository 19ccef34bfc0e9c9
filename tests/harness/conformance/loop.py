"""Families of the rollout loop, by the conductor's own decisions: dynamic sampling, rollouts under way at its end."""

from __future__ import annotations

from typing import Any

from slime_events.algorithms.pass_rate import drop_metrics
from tests.harness.conformance.case import Case, UnknownShape
from tests.harness.conformance.continued import is_continued
from tests.harness.conformance.fan_out import fan_out_at_a_boundary
from tests.harness.conformance.filters import filter_of
from tests.harness.conformance.miniature import Miniature
from tests.harness.conformance.resumed import go_on


def dynamic_sampling(case: Case) -> Any:
    """Groups end in the order of their numbers, slow ones behind the others, until the step is sealed."""
    params = case.input
    size, rewards = params["n_samples_per_prompt"], params["rewards_by_group"]
    draw = params.get("over_sampling_batch_size") or params["rollout_batch_size"]
    mini = Miniature(
        params["rollout_batch_size"],
        size,
        draw,
        [*rewards, *[[0.0] * size] * 1000],  # a source does not end where the case ends
        filter_of(params.get("filter")),
        partial_rollout=params.get("partial_rollout", False),
    )
    slow = set(params.get("slow_groups") or ())
    ended = _play(mini, slow, last=len(rewards))
    left = mini.carried_over()
    return {
        # What is missing is drawn at once, in as many rounds of `draw` as slime makes calls.
        "get_samples_calls": [draw for count in mini.draws for _ in range(0, count, draw)],
        "kept_group_indices": mini.sealed(),
        "metrics": drop_metrics(mini.drop_reasons()),
        "recycled_group_indices": [int(group.group[1:]) for group in left],
        "recycled_start_rollout_id": [group.version for group in left],
        "ended_group_indices": ended,
        "dropped_group_indices": mini.dropped(),
    }


def _play(mini: Miniature, slow: set[int], last: int, *, running: set[int] = frozenset()) -> list[int]:
    """Let the groups that were drawn end one after the other until the step is sealed; those that ended.

    running: never end. Where the sealed batch suspends, all that have not ended rest.
    """
    ended: list[int] = []
    begun: set[int] = set()
    while mini.sealed() is None:
        drawn = set(range(min(sum(mini.draws), last)))
        for group in sorted(drawn - begun):
            mini.begin(group)
        begun |= drawn
        waiting = sorted(drawn - set(ended) - running, key=lambda group: (group in slow, group))
        if not waiting:
            break
        mini.end(waiting[0])
        ended.append(waiting[0])
        mini.settle()
    if mini.suspends():
        for group in sorted(begun - set(ended)):
            mini.rest(group)
    return ended


def partial_rollout(case: Case) -> Any:
    """Surplus groups at a step's end, one sample that rested, or a rollout that becomes several samples."""
    params = case.input
    if "drawn_groups" in params:
        return _surplus(params)
    if is_continued(params):
        return go_on(params)
    if "fan-out" in params.get("scenario", "") or "list[Sample]" in params.get("scenario", ""):
        return fan_out_at_a_boundary()
    raise UnknownShape(f"neither groups nor a sample in {sorted(params)}")


def _surplus(params: dict[str, Any]) -> Any:
    """Some groups end at once, the others are still running when the step is sealed."""
    drawn, target = params["drawn_groups"], params.get("target", params.get("rollout_batch_size", 1))
    running = params.get("still_running", 0)
    at_once = params.get("completing_in_same_batch", drawn - running)
    partial = params.get("partial_rollout", True)
    mini = Miniature(target, 1, drawn, [[1.0]] * drawn, filter_of(None), partial_rollout=partial)
    for group in range(drawn):
        mini.begin(group)
    for group in range(at_once):
        mini.end(group)
    mini.settle()
    if mini.suspends():
        for group in range(at_once, drawn):
            mini.rest(group)
    kept, recycled = mini.sealed() or [], mini.carried_over()
    return {"kept": len(kept), "recycled": len(recycled), "lost": drawn - len(kept) - len(recycled)}
