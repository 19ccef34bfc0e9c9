"""`Verdict`: a run beside the one-rank run of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from schemas.doc import doc
from tests.harness.layouts.combinations import Combination
from tests.harness.learning.measured import Measured, equal_steps, log_prob_difference, norm_difference

LIMIT = 1e-4
"""Largest difference that is rounding, of a gradient norm (relative) and of a log-prob."""
GAIN, BEHIND = 0.05, 0.1
"""Least gain in the held-out score; how far it may end below that of one rank. 128 questions: 0.04 is one deviation."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row of the table. A one-rank run is compared with itself."""

    combination: Combination
    run: Measured
    alone: Annotated[Measured, doc("the one-rank run of the same model")]
    killed: Annotated[str, doc("the process and the step; empty if none was killed")]
    seconds: Annotated[float, doc("of the whole run, with its start and the kill")]
    commands: Annotated[Mapping[str, str], doc("what a command printed, by its name; empty if it exited with 0")]
    failures: Annotated[Sequence[str], doc("what else is wrong: of the run, or of its history")] = field(
        default_factory=tuple
    )

    @property
    def wrong(self) -> list[str]:
        """A sentence about each fault; none if the run learned as its one-rank run did."""
        gain, behind = self.run.held_out[-1] - self.run.held_out[0], self.alone.held_out[-1] - self.run.held_out[-1]
        held = {
            f"the held-out score rose by {gain:.2f} only": gain >= GAIN,
            f"the held-out score ended {behind:.2f} below that of one rank": behind <= BEHIND,
            "the first step was trained on other tokens than that of one rank": equal_steps(self.run, self.alone) > 0,
            f"gradient norms differ by {self.norm:.1e}": self.norm <= LIMIT,
            f"log-probs differ by {self.log_probs:.1e}": self.log_probs <= LIMIT,
            f"engine and trainer differ by {self.run.agreement:.1e}": self.run.agreement <= LIMIT,
            "no rank was killed": bool(self.killed),
            f"lost workers: {', '.join(self.run.lost) or 'none'}": list(self.run.lost) == ["trainer"],
            "the trainer did not continue with the committed bits": self.run.is_exact,
        }
        wrong = [sentence for sentence, holds in held.items() if not holds]
        return [*self.failures, *wrong, *(f"{name}: {text}" for name, text in self.commands.items() if text)]

    @property
    def norm(self) -> float:
        """Largest relative difference of gradient norms, where tokens are equal."""
        return norm_difference(self.run, self.alone)

    @property
    def log_probs(self) -> float:
        """Largest difference of log-probs, where tokens are equal."""
        return log_prob_difference(self.run, self.alone)
