"""Run a trial of a Harbor task: `--agent-command "harbor/bin/python harbor_trial.py"`.

The task's folder is in the prompt's metadata. Arguments of this script are passed to `harbor trials start`, such as
`--agent-kwarg max_turns=8`. Harbor finds the session in OPENAI_BASE_URL. It exits with 0 even if the trial failed, and
writes `result.json` with the exception and the verifier's rewards by name.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

QUIET = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise both connect to the internet
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
    sys.exit(trial.returncode or 1)  # a failed trial does not show anything about the model
result = json.loads(results[0].read_text())
broke = (result.get("exception_info") or {}).get("exception_type")
if broke and broke != "AgentTimeoutError":  # the verifier also grades an agent that ran out of time
    sys.exit(f"the trial failed: {broke}: {result['exception_info']['exception_message']}")
rewards = (result.get("verifier_result") or {}).get("rewards") or {}
if "reward" not in rewards:
    sys.exit("the verifier gave no reward")
print(json.dumps({"reward": float(rewards["reward"]), "metadata": {"rewards": rewards}}))
