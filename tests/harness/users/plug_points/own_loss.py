"""--custom-loss-function-path: minus the log-likelihood of the samples that were right."""

from __future__ import annotations

import torch
from called import note
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy


def likelihood(args, batch, logits, sum_of_sample_mean):
    note("likelihood", samples=len(batch["rewards"]))
    _, values = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=False,
    )
    every = torch.cat(values["log_probs"])
    right = torch.cat([part * (raw > 0) for part, raw in zip(values["log_probs"], batch["raw_reward"], strict=True)])
    loss = -sum_of_sample_mean(right)
    return loss, {"loss": loss.clone().detach(), "own_nll": -sum_of_sample_mean(every).detach()}
