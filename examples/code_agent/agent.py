"""An agent that writes a program, sees its error, and may try again: `--agent-command "python agent.py"`.

It contains no code about training: OpenAI's client finds the model by OPENAI_BASE_URL. The last line of the output is
the reward.
"""

import json
import re
import sys

from openai import OpenAI
from sandbox import run

MOST_TURNS = 3
BLOCK = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


def program_of(text: str) -> str:
    """Return the first block of code in an answer, or the whole answer if it has none."""
    block = BLOCK.search(text)
    return block[1] if block else text


def solve(client: OpenAI, messages: list[dict[str, str]]) -> tuple[str, int]:
    """Return the output of the first program without an error, and the number of failed programs before it."""
    for failed in range(MOST_TURNS):
        completion = client.chat.completions.create(model="default", messages=messages, max_tokens=32)
        text = completion.choices[0].message.content or ""
        printed, error = run(program_of(text))
        if not error:
            return printed, failed
        messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": error}]
    return "", MOST_TURNS


def main() -> None:
    task = json.load(sys.stdin)
    printed, failed = solve(OpenAI(max_retries=5), task["prompt"])
    print(json.dumps({"reward": float(printed == task["label"]), "metadata": {"failed": failed}}))


if __name__ == "__main__":
    main()
