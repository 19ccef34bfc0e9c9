"""On-policy distillation (Agarwal et al., 2024): the student's own tokens, held to the teacher's probabilities."""

from torch import Tensor

AWAITS = "a teacher model in the trainer"


def distil(advantages: Tensor, student: Tensor, teacher: Tensor, coef: float) -> tuple[Tensor, Tensor]:
    """Advantages and reverse KL per token, any one shape: kl = student - teacher log-probs, A - coef * kl."""
    reverse_kl = student - teacher
    return advantages - coef * reverse_kl, reverse_kl
