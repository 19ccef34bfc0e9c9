"""One trial of a Harbor task: `--agent-command "harbor/bin/python harbor_trial.py"`. The task's folder is in the
prompt's metadata.

Written from Harbor's documentation: `harbor trials start` leaves a folder with `result.json`, whose verifier's rewards
are numbers by name.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

task = json.load(sys.stdin)
harbor = Path(sys.executable).with_name("harbor")
trial = subprocess.run(
    [
        *(harbor, "trials", "start", "--path", task["metadata"]["task"], "--trials-dir", "trials"),
        *("--agent", os.environ.get("HARBOR_AGENT", "terminus-2"), "--model", "openai/default"),
        *("--agent-kwarg", f"api_base={os.environ['OPENAI_BASE_URL']}"),
    ],
    stdout=sys.stderr,
    check=False,
)
results = list(Path("trials").glob("*/result.json"))
if trial.returncode or not results:
    sys.exit(trial.returncode or 1)  # the trial broke, which says nothing of the model
rewards = (json.loads(results[0].read_text()).get("verifier_result") or {}).get("rewards") or {}
if "reward" not in rewards:
    sys.exit("the verifier gave no reward")
print(json.dumps({"reward": float(rewards["reward"]), "metadata": {"rewards": rewards}}))
