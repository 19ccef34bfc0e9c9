"""The trainer's Megatron-core rank: model, optimizer, one rollout step, weights and checkpoints. No Ray in here."""

import warnings

# Megatron warns at each import of optional packages; `slime-events doctor` reports them once.
warnings.filterwarnings(
    "ignore", message=".*(Transformer Engine and Apex are|Apex is) not installed", module="megatron"
)
warnings.filterwarnings("ignore", message="full scope is deprecated", module="megatron")
warnings.filterwarnings("ignore", message=".*tp_group is None, using default tp group", module="megatron")
