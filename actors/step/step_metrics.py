"""`StepMetrics`: the metrics of a rollout step, summed over micro batches, optimizer steps and ranks.

`OffPolicyMetrics`: the TIS weights of the step's reused rollouts.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from slime_events.algorithms.objective import Correction

# A sample without a pass adds exactly 0 to these metrics, so that they are means over the whole step. All other metrics
# of the objective are means over the samples that were passed through the model.
OVER_THE_STEP = frozenset({"loss", "pg_loss", "pg_clipfrac"})
DIFFERENCE = "train_rollout_logprob_abs_diff"
AGREEMENT = "logprob_agreement_max"


class StepMetrics:
    """Sums metrics; the sums stay on the device until `means` is called."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._over_the_step = set(OVER_THE_STEP)
        self.counts: dict[str, float] = defaultdict(float)
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, figures: Mapping[str, Tensor], weight: float) -> None:
        """Add metrics of the objective, which are weighted sums, and the total weight of their samples."""
        self.counts["passed"] += weight
        for name, value in figures.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def add_over_the_step(self, name: str, value: Tensor) -> None:
        """Add a weighted sum over samples of the step, including samples without a pass through the model."""
        self._over_the_step.add(name)
        self._sums[name] = self._sums.get(name, 0.0) + value

    def add_difference(self, trainer: Tensor, rollout: Tensor, mask: Tensor, same: Tensor) -> None:
        """Add the difference of trainer's and engine's log-probs before the update [tokens], where mask is not 0.

        same: bool [tokens], True for tokens that the engine sampled with exactly the weights in training. Only these
        differences measure disagreement; all others include the policy's change.
        """
        distance = (trainer - rollout).abs().masked_fill(mask == 0, 0.0)
        self._sums[DIFFERENCE] = self._sums.get(DIFFERENCE, 0.0) + distance.sum()
        self.counts["compared"] += int(mask.count_nonzero())
        largest = {f"{DIFFERENCE}_max": distance.max()}
        if bool(same.any()):
            largest[AGREEMENT] = distance.masked_fill(~same, 0.0).max()
        for name, value in largest.items():
            self._largest[name] = torch.maximum(self._largest.get(name, value), value)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure the seconds of a part of the step; on CUDA only host time, which includes waits for the device."""
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def means(self, weight: float, data: dist.ProcessGroup) -> dict[str, float]:
        """Return all metrics by name, the same on every data parallel rank; collective.

        weight: rollouts (or trained tokens) of the whole step. Seconds are those of the slowest rank.
        """
        sums, largest = ({name: float(value) for name, value in part.items()} for part in (self._sums, self._largest))
        mine = (sums, largest, dict(self.counts), dict(self.seconds))
        everyone = [mine] * data.size()
        if data.size() > 1:
            dist.all_gather_object(everyone, mine, group=data)
        sums_of, largest_of, counts_of, seconds_of = zip(*everyone, strict=True)
        total, counts = _joined(sum, sums_of), _joined(sum, counts_of)
        passed, compared = counts.pop("passed", 0.0), counts.pop("compared", 0.0)
        difference = total.pop(DIFFERENCE, 0.0)
        means = dict.fromkeys(sorted(OVER_THE_STEP), 0.0) | {
            name: value / (weight if name in self._over_the_step else max(passed, 1e-12))
            for name, value in total.items()
        }
        if compared:
            means[DIFFERENCE] = difference / compared
        slowest = {f"seconds_{part}": value for part, value in _joined(max, seconds_of).items()}
        return means | _joined(max, largest_of) | counts | slowest


class OffPolicyMetrics:
    """Sums TIS weights over the trained tokens of reused rollouts, on the device until `figures` is called."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), device=device)

    def add(self, correction: Correction, chosen: Tensor) -> None:
        """Add the weights of chosen tokens. correction: of all tokens [tokens]. chosen: bool [tokens]."""
        weight, clipped = correction.weight[chosen], correction.clipped[chosen]
        if weight.numel():
            counted = torch.full_like(weight, 1.0)
            self._sums += torch.stack([counted.sum(), weight.sum(), clipped.sum()]).double()
            self._largest = torch.maximum(self._largest, weight.max())

    def figures(self, data: dist.ProcessGroup) -> dict[str, float]:
        """Return mean and largest weight, and the share of tokens whose weight was bounded; collective."""
        if data.size() > 1:
            dist.all_reduce(self._sums, group=data)
            dist.all_reduce(self._largest, op=dist.ReduceOp.MAX, group=data)
        tokens, weight, clipped = self._sums.tolist()
        return {
            "recalled_tis": weight / max(tokens, 1.0),
            "recalled_tis_max": float(self._largest),
            "recalled_tis_clipfrac": clipped / max(tokens, 1.0),
        }


def _joined(how: Callable[[Iterable[float]], float], parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the metrics of all ranks, by name."""
    names = sorted({name for part in parts for name in part})
    return {name: how(part[name] for part in parts if name in part) for name in names}
