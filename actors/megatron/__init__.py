"""The trainer's Megatron-core rank: model, optimizer, one rollout step, weights and checkpoints. No Ray in here."""
