"""One trial of a Harbor task: `--agent-command "harbor/bin/python harbor_trial.py"`. The task's folder is in the
prompt's metadata. Words after the file's name go on to `harbor trials start`, as `--agent-kwarg max_turns=8`.

That program finds the session in OPENAI_BASE_URL. It ends with 0 also where the trial broke, and leaves a folder with
`result.json`: what broke, and the verifier's rewards, numbers by name.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

QUIET = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else both ask the internet
task = json.load(sys.stdin)
harbor = Path(sys.executable).with_name("harbor")
trial = subprocess.run(
    [
        *(harbor, "trials", "start", "--path", task["metadata"]["task"], "--trials-dir", "trials"),
        *("--agent", "terminus-2", "--model", "openai/default", *sys.argv[1:]),
    ],
    stdout=sys.stderr,
    env=os.environ | QUIET,
    check=False,
)
results = list(Path("trials").glob("*/result.json"))
if trial.returncode or not results:
    sys.exit(trial.returncode or 1)  # the trial broke, which says nothing of the model
result = json.loads(results[0].read_text())
broke = (result.get("exception_info") or {}).get("exception_type")
if broke and broke != "AgentTimeoutError":  # the verifier grades what an agent left that ran out of time
    sys.exit(f"the trial broke: {broke}: {result['exception_info']['exception_message']}")
rewards = (result.get("verifier_result") or {}).get("rewards") or {}
if "reward" not in rewards:
    sys.exit("the verifier gave no reward")
print(json.dumps({"reward": float(rewards["reward"]), "metadata": {"rewards": rewards}}))
