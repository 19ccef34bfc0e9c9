"""On-policy distillation (Agarwal et al., 2024, arXiv 2306.13649): own tokens under a teacher's log-probs."""

from collections.abc import Sequence

from torch import Tensor

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.segments import Segments


def distil(advantages: Tensor, student: Tensor, teacher: Tensor, coef: float) -> tuple[Tensor, Tensor]:
    """Advantages and reverse KL per token, any one shape: kl = student - teacher log-probs, A - coef * kl."""
    reverse_kl = student - teacher
    return advantages - coef * reverse_kl, reverse_kl


def distilled(
    advantages: Tensor, student: Sequence[Tensor], teacher: Sequence[Tensor] | None, segments: Segments, coef: float
) -> Tensor:
    """The advantages of `distil`, [tokens], of log-probs before the update, [response] each.

    Raises ImpossibleCombination without a teacher, TrainerError for lengths that disagree.
    """
    if teacher is None:
        raise ImpossibleCombination("use_opd is on but there are no log-probs of a teacher: give one")
    parts = segments.join(student, "log_probs"), segments.join(teacher, "teacher_log_probs")
    return distil(advantages, *parts, coef)[0]
