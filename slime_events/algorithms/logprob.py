"""Log-probs and entropy from logits that hold the whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def token_log_probs(logits: Tensor, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
    """log softmax(logits)[token], [tokens] in nats; logits [tokens, vocab] (already over temperature), tokens int64.

    `keep` (bool [tokens, vocab]) is the set that top-p sampling left: the probability is taken over it, so that it is
    the one the token was drawn with. The token itself is always in it.
    """
    logits = logits.float()
    chosen = logits.gather(-1, tokens.unsqueeze(-1))
    if keep is not None:
        logits = logits.masked_fill(~keep.scatter(-1, tokens.unsqueeze(-1), True), -torch.inf)
    return (chosen - logits.logsumexp(-1, keepdim=True)).squeeze(-1)


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits) over the whole vocabulary, [tokens] in nats."""
    logits = logits.float()
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)
