"""--custom-rm-path custom_rm.py: a reward model that is made once."""

from __future__ import annotations

from called import note


class CustomRewardModel:
    def __init__(self, hf_checkpoint, bonus, limit=20):
        self.bonus, self.limit = bonus, limit
        note("made", hf_checkpoint=hf_checkpoint)

    def compute_reward(self, prompts, responses):
        note("compute_reward", prompts=len(prompts))
        return [min(len(response), self.limit) / self.limit + self.bonus for response in responses]
