"""--custom-pg-loss-reducer-function-path: the usual sum, divided by eight."""

from __future__ import annotations

from called import note
from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean


def by_constant(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    usual = get_sum_of_sample_mean(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)
    note("by_constant", samples=len(response_lengths))
    return lambda pg_loss: usual(pg_loss) / 8
