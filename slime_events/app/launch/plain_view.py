"""`PlainView`: a line per step, for logs and pipes."""

from __future__ import annotations

import sys
from typing import TextIO

from slime_events.analysis.model.progress import Progress, StepLine


def step_text(line: StepLine, progress: Progress, steps: int) -> str:
    """One step in one line."""
    eta = progress.eta_s(steps)
    return (
        f"step {line.step + 1}/{steps}  reward {line.reward:.3f}  accepted {line.accepted_share:.0%}  "
        f"length {line.mean_length:.1f}  {line.tokens_per_s:.0f} tok/s  staleness {line.staleness}  "
        f"{line.seconds:.2f} s  trainer idle {line.idle:.0%}" + (f"  ETA {eta:.0f} s" if eta is not None else "")
    )


class PlainView:
    """Writes lines to a stream."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._evals = 0

    def note(self, text: str) -> None:
        """A sentence."""
        print(text, file=self._out, flush=True)

    def begin(self, progress: Progress) -> None:
        """Evaluations of before are not said again."""
        self._evals = len(progress.evals)

    def step(self, line: StepLine, progress: Progress, steps: int) -> None:
        """A line per step."""
        self.note(step_text(line, progress, steps))

    def tick(self, progress: Progress, steps: int) -> None:
        """A line per evaluation."""
        for done in progress.evals[self._evals :]:
            made_by = f" (answers by {done.other_versions})" if done.other_versions else ""
            failed = f", {done.failed} failed" if done.failed else ""
            what = f"eval {done.dataset} of version {done.version}{made_by}"
            self.note(f"{what}: {done.mean:.3f} over {done.samples} samples{failed}")
        self._evals = len(progress.evals)

    def close(self) -> None:
        """Nothing is held open."""
