"""The examples that need a client of the test environment alone, against a model that is a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.scripted_api import Scripted, served

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
TASK = {"prompt": [{"role": "user", "content": "2+3="}], "label": "5"}


@pytest.mark.parametrize(
    ("file", "says", "reward"), [("openai_client.py", "5", 1.0), ("anthropic_client.py", "6", 0.0)]
)
def test_it_asks_twice_and_says_its_reward(file: str, says: str, reward: float) -> None:
    scripted = Scripted(lambda _: says)
    with served(scripted) as url:
        urls = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / file)],
            input=json.dumps(TASK),
            env=os.environ | urls | {"OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert json.loads(done.stdout.splitlines()[-1]) == {"reward": reward}
    first, second = scripted.asked
    assert (len(first.messages), len(second.messages)) == (1, 3)
    assert (first.stream, second.stream) == (False, True)
