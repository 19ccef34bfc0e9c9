"""mini-swe-agent's DefaultAgent in this session's folder: `--agent-command "python mini_swe_agent.py"`."""

import json
import os
import sys

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_COST_TRACKING", "ignore_errors")  # this model has no price

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model

task = json.load(sys.stdin)
model = get_model(config={"model_name": "openai/default", "model_class": "litellm_textbased"})
agent = DefaultAgent(
    model,
    LocalEnvironment(),
    system_template="Answer with one command in a block of bash.",
    instance_template="{{task}}",
    step_limit=3,
    cost_limit=0,
)
ended = agent.run(task["prompt"][-1]["content"])
print(json.dumps({"reward": float(task["label"] in str(ended)), "metadata": {"ended": str(ended)[:200]}}))
