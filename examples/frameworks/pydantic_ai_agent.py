"""An agent with pydantic-ai that must answer with a number: `--agent-command "python pydantic_ai_agent.py"`."""

import json
import sys

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel

task = json.load(sys.stdin)
agent = Agent(OpenAIChatModel("default"), instructions="Answer with the number alone.", retries=2)


@agent.tool_plain
def add(first: int, second: int) -> int:
    """Adds two numbers."""
    return first + second


@agent.output_validator
def is_number(text: str) -> str:
    """Ask again if the answer is not a number."""
    from pydantic_ai import ModelRetry

    if not text.strip().lstrip("-").isdecimal():
        raise ModelRetry("Answer with the number alone.")
    return text


try:
    answer = agent.run_sync(task["prompt"][-1]["content"]).output
except AgentRunError:
    answer = ""
print(json.dumps({"reward": float(answer.strip() == task["label"])}))
