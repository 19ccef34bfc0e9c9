"""An agent with Anthropic's client that checks its answer once: `--agent-command "python anthropic_client.py"`."""

import json
import sys

from anthropic import Anthropic

task = json.load(sys.stdin)
client = Anthropic(max_retries=8)
messages = list(task["prompt"])
first = client.messages.create(model="default", max_tokens=40, messages=messages)
messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "Are you sure?"}]
with client.messages.stream(model="default", max_tokens=40, messages=messages) as stream:
    second = stream.get_final_text()
print(json.dumps({"reward": float(second.strip() == task["label"])}))
