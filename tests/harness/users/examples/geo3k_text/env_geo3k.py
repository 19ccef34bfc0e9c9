"""An environment that scores an answer in a tool call, and says what was wrong with it."""

import json
import re

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class Geo3kEnv:
    def __init__(self, ground_truth, max_turns: int) -> None:
        self.ground_truth, self.max_turns, self.turn = str(ground_truth), max_turns, 0

    def reset(self) -> None:
        self.turn = 0

    def step(self, response_text: str) -> tuple[dict, bool, dict]:
        self.turn += 1
        match = CALL.search(response_text)
        last = self.turn >= self.max_turns
        if match is None:
            return {"obs_str": "No tool call was found.", "role": "tool"}, True, {}
        answer = str(json.loads(match.group(1))["arguments"]["answer"])
        right = answer == self.ground_truth
        feedback = "right, now answer" if right else f"{answer} is wrong"
        return {"obs_str": f"score {float(right)}: {feedback}", "role": "tool"}, last, {}

    def format_observation(self, observation: dict) -> dict:
        return {"role": observation["role"], "content": observation["obs_str"]}

    def close(self) -> None:
        return


def build_env(sample=None, args=None, **_) -> Geo3kEnv:
    return Geo3kEnv(sample.label, args.max_turns)
