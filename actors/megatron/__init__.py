"""A Megatron-core rank of the trainer: model, optimizer, weights and checkpoints. It needs no Ray."""

import warnings

# Megatron warns about missing optional packages at each import; `slime-events doctor` reports them once.
warnings.filterwarnings(
    "ignore", message=".*(Transformer Engine and Apex are|Apex is) not installed", module="megatron"
)
warnings.filterwarnings("ignore", message="full scope is deprecated", module="megatron")
warnings.filterwarnings("ignore", message=".*tp_group is None, using default tp group", module="megatron")
