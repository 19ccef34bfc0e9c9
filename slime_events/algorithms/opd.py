"""On-policy distillation (Agarwal et al., 2024, arXiv 2306.13649): a teacher scores the student's own tokens."""

from collections.abc import Sequence

from torch import Tensor

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.segments import Segments


def distil(advantages: Tensor, student: Tensor, teacher: Tensor, coef: float) -> tuple[Tensor, Tensor]:
    """Return (advantages - coef * kl, kl) per token, with kl = student - teacher log-probs. All shapes are equal."""
    reverse_kl = student - teacher
    return advantages - coef * reverse_kl, reverse_kl


def distilled(
    advantages: Tensor, student: Sequence[Tensor], teacher: Sequence[Tensor] | None, segments: Segments, coef: float
) -> Tensor:
    """Return the advantages of `distil`, [tokens]. `student` and `teacher` are log-probs before the update, [response]
    per sample.

    Raises ImpossibleCombination without a teacher, TrainerError if lengths disagree.
    """
    if teacher is None:
        raise ImpossibleCombination("use_opd is on but there are no teacher log-probs: give a teacher")
    parts = segments.join(student, "log_probs"), segments.join(teacher, "teacher_log_probs")
    return distil(advantages, *parts, coef)[0]
