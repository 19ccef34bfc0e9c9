"""--custom-tis-function-path: a weight of two, and how far the engine is from the trainer."""

from __future__ import annotations

import torch
from called import note


def doubled(
    args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, **kwargs
):
    apart = (torch.cat(list(train_log_probs)) - torch.cat(list(rollout_log_probs))).abs()
    note("doubled", samples=len(loss_masks))
    return pg_loss * 2, loss_masks, {"own_apart": apart}
