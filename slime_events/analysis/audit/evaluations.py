"""Evaluations: each mean is that of the rewards in the log, and of the weights that the event names."""

import math

from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutRequested
from slime_events.algorithms.pass_rate import pass_rate
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Fate, Ledger, SampleEntry
from slime_events.analysis.audit.report import Counts


class Evaluations(Check):
    """Once per set and version, over all its samples, after the last of them has ended."""

    name = "evaluations"
    promise = "means, counts, lengths and weight versions recomputed from rewards and rollouts"
    counted = ("evaluations", "samples")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._groups: dict[tuple[str, int], list[str]] = {}

    def _on_prompt_submitted(self, event: PromptSubmitted) -> None:
        if event.purpose is Purpose.EVAL and event.version is not None:
            self._groups.setdefault((event.dataset, event.version), []).append(event.group)

    def _on_rollout_requested(self, event: RolloutRequested) -> None:
        """Check that the request names one version. `Rollouts` checks that the rollout keeps to it."""
        group, plan = self.ledger.groups.get(event.group), self.ledger.rules.plan
        if group is None or event.purpose is not Purpose.EVAL or plan is None or not plan.eval_exact:
            return
        if (event.min_version, event.max_version) != (group.version, group.version):
            wrong = f"its bounds admit other weights than v{group.version}"
            self.find(wrong, "the evaluation may use weights that it does not name")

    def _on_eval_completed(self, event: EvalCompleted) -> None:
        self.seen["evaluations"] += 1
        if event.function:  # its samples are not in the log
            value = math.fsum(event.rewards) / max(1, len(event.rewards))
            if not math.isclose(event.mean, value, rel_tol=1e-9, abs_tol=1e-12):
                wrong = f"its mean is {event.mean!r}, and its rewards give {value!r}"
                self.find(wrong, "a point of the evaluation's curve is wrong")
            return
        names = self._groups.pop((event.dataset, event.version), None)
        if names is None:
            self.find(
                f"no evaluation of {event.dataset} with v{event.version} was under way", "its mean covers nothing"
            )
            return
        groups = [self.ledger.groups[name] for name in names if name in self.ledger.groups]
        samples = [sample for group in groups for sample in group.samples.values()]
        self.seen["samples"] += len(samples)
        graded = [s.reward for s in samples if s.reward is not None]
        if unfinished := sum(1 for s in samples if not _ended(s)):
            self.find(f"{unfinished} of its samples had not ended", "its mean does not cover the whole set")
        if (event.samples, event.failed) != (len(samples), len(samples) - len(graded)):
            wrong = f"it has {event.samples} samples, {event.failed} failed, and the log {len(samples)}, "
            wrong += f"{len(samples) - len(graded)} failed"
            self.find(wrong, "its mean covers different samples")
        oldest = min((s.oldest for s in samples if s.oldest is not None), default=event.version)
        newest = max((s.newest for s in samples if s.newest is not None), default=event.version)
        if (event.oldest_version, event.newest_version) != (oldest, newest):
            versions = f"v{event.oldest_version} to v{event.newest_version}"
            wrong = f"it names {versions} as the weights of the answers, and the log has v{oldest} to v{newest}"
            self.find(wrong, "the evaluation used weights that it does not name")
        sums = {"mean": math.fsum(graded), "mean_length": math.fsum(s.length for s in samples)}
        for name, total in sums.items():
            value = total / max(len(samples), 1)
            if not math.isclose(getattr(event, name), value, rel_tol=1e-9, abs_tol=1e-12):
                wrong = f"its {name} is {getattr(event, name)!r}, and the log gives {value!r}"
                self.find(wrong, "a point of the evaluation's curve is wrong")
        answers = [[s.reward or 0.0 for s in group.samples.values() if not s.rollout] for group in groups]
        rates = pass_rate([reward for rewards in answers for reward in rewards], list(map(len, answers)))
        if event.pass_rates and event.pass_rates != rates:  # empty in runs of releases that did not record them
            self.find(
                f"its pass rates are {event.pass_rates}, and the log gives {rates}", "a point of its curve is wrong"
            )

    def counts(self) -> Counts:
        return self.seen | {"under way": len(self._groups)}


def _ended(sample: SampleEntry) -> bool:
    broken = any(other.fate is Fate.FAILED for other in sample.group.samples.values())
    return bool(sample.graded) or sample.fate is Fate.FAILED or (sample.fate is Fate.COMPLETED and broken)
