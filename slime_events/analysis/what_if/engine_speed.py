"""`EngineSpeed`: how long a rollout takes, by its tokens and by what else its engine does."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc


class EngineSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a rollout with L tokens:

        per_rollout + per_prompt p + per_chunk c + L (per_token + per_running n + per_training t)

    p: prompts that the engine computes before and meanwhile; then it generates no tokens. c: chunks that all its
    rollouts append meanwhile. n: mean number of rollouts. t: share of the time in which the trainer trains. Tool calls
    come on top.
    """

    per_rollout: Annotated[float, doc("fixed time [s]")]
    per_prompt: Annotated[float, doc("time of a prompt's forward pass, one prompt after the other [s]")]
    per_token: Annotated[float, doc("time per token, however many rollouts run [s]")]
    per_running: Annotated[float, doc("further time per token and running rollout [s]")]
    per_training: Annotated[float, doc("further time per token while the trainer trains [s]")] = 0.0
    per_chunk: Annotated[
        float, doc("time by which each chunk that is appended delays all rollouts of its engine [s]")
    ] = 0.0
    least_per_chunk: Annotated[float, doc("least value of `per_chunk` that the run's rollouts allow [s]")] = 0.0
    most_per_chunk: Annotated[float, doc("most value of `per_chunk` that the run's rollouts allow [s]")] = 0.0
    error: Annotated[float, doc("mean absolute error of the fit, as a share of the mean time of a rollout")] = 0.0
    rollouts: Annotated[int, doc("rollouts that were fitted")] = 0
    chunks: Annotated[int, doc("chunks that these rollouts appended before their ends")] = 0
    most_running: Annotated[int, doc("most rollouts at once that were seen on one engine")] = 0
    overlap: Annotated[float, doc("share of the rollouts' time in which the trainer trained too")] = 0.0

    def seconds_per_token(self, running: int, *, training: bool) -> float:
        """Return the time of a token of each of `running` rollouts, without chunks [s]."""
        return self.per_token + self.per_running * running + (self.per_training if training else 0.0)
