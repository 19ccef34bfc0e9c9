"""--custom-tis-function-path: ratios of sequences, bounded, with tokens that are far off left out."""

import torch
from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp


def compute_mis_weights_with_cp(
    args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, **kwargs
):
    weights, masks = [], []
    for train, rollout, mask, total, length in zip(
        train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, strict=True
    ):
        ratio = all_gather_with_cp(train, total, length) - all_gather_with_cp(rollout, total, length)
        mask = mask.float()
        if args.mis_level == "sequence":
            level = (ratio * mask).sum() / mask.sum().clamp_min(1)
            weight = level.exp().expand_as(ratio)
        else:
            weight = ratio.exp()
        kept = mask * (ratio.exp() >= args.mis_veto).float()
        weights.append(slice_log_prob_with_cp(weight.clamp(args.mis_bounds[0], args.mis_bounds[1]), total, length))
        masks.append(slice_log_prob_with_cp(kept, total, length))
    flat = torch.cat(weights).detach()
    return pg_loss * flat, masks, {"mis_weight": flat, "mis_kept": torch.cat(masks)}
