"""smolagents' ToolCallingAgent as a rollout: `--agent-command "python smolagents_agent.py"`."""

import json
import os
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool

task = json.load(sys.stdin)


@tool
def add(first: int, second: int) -> int:
    """Adds two numbers.

    Args:
        first: One number.
        second: The other.
    """
    return first + second


# smolagents' default is `required`, which needs a grammar backend in the engines.
model = OpenAIModel(
    "default", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], tool_choice="auto"
)
agent = ToolCallingAgent([add], model, max_steps=3, verbosity_level=0)
answer = agent.run(task["prompt"][-1]["content"])
print(json.dumps({"reward": float(str(answer) == task["label"])}))
