"""The trainer's Megatron-core rank: model, optimizer, one rollout step, weights and checkpoints. No Ray in here."""

import warnings

# Megatron says at each import what it would rather have; `slime-events doctor` says it once.
warnings.filterwarnings(
    "ignore", message=".*(Transformer Engine and Apex are|Apex is) not installed", module="megatron"
)
warnings.filterwarnings("ignore", message="full scope is deprecated", module="megatron")
warnings.filterwarnings("ignore", message=".*tp_group is None, using default tp group", module="megatron")
