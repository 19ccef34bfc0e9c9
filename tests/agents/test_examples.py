"""The examples that need a client of the test environment alone, against a model that is a script; and Harbor's, whose
`harbor` is a script too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.scripted_api import Scripted, served

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
HARBOR = """#!/bin/sh
echo "$@" >arguments
echo "Trial completed!"
mkdir -p trials/task__a
printf '%s' "$RESULT" >trials/task__a/result.json
exit $CODE
"""
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
    first, second = scripted.requests
    assert (len(first.messages), len(second.messages)) == (1, 3)
    assert (first.stream, second.stream) == (False, True)


def harbor_trial(folder: Path, result: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "harbor").write_text(HARBOR)
    (folder / "bin" / "harbor").chmod(0o755)
    return subprocess.run(
        [folder / "bin" / "python", EXAMPLES / "harbor_trial.py", "--agent-kwarg", "max_turns=4"],
        input=json.dumps({"metadata": {"task": "/tasks/hello"}}),
        cwd=folder,
        env=os.environ | {"RESULT": json.dumps(result), "CODE": str(code)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("broke", [None, {"exception_type": "AgentTimeoutError", "exception_message": "600 s"}])
def test_the_reward_of_a_harbor_trial_is_its_verifiers(tmp_path: Path, broke: object) -> None:
    rewards = {"reward": 1, "style": 0.5}
    done = harbor_trial(tmp_path, {"verifier_result": {"rewards": rewards}, "exception_info": broke})
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"reward": 1.0, "metadata": {"rewards": rewards}}
    arguments = (tmp_path / "arguments").read_text()
    assert "--path /tasks/hello " in arguments
    assert arguments.endswith(" --agent-kwarg max_turns=4\n")


RUNTIME = {"exception_type": "RuntimeError", "exception_message": "Failed to start tmux session"}
GRADED = {"verifier_result": {"rewards": {"reward": 0.0}}}


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"verifier_result": None, "exception_info": RUNTIME}, 0),
        (GRADED | {"exception_info": RUNTIME}, 0),
        ({"verifier_result": {"rewards": {"style": 0.5}}}, 0),
        (GRADED, 1),
    ],
    ids=["broke", "broke-and-graded", "no-reward", "exit-code"],
)
def test_a_harbor_trial_that_broke_is_no_answer(tmp_path: Path, result: object, code: int) -> None:
    done = harbor_trial(tmp_path, result, code)
    assert (done.returncode, done.stdout) == (1, "")
