"""An agent with OpenAI's client that checks its answer once: `--agent-command "python openai_client.py"`."""

import json
import sys

from openai import OpenAI

task = json.load(sys.stdin)
client = OpenAI(max_retries=8)
messages = list(task["prompt"])
first = client.chat.completions.create(model="default", messages=messages).choices[0].message.content or ""
messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Are you sure?"}]
stream = client.chat.completions.create(model="default", messages=messages, stream=True)
second = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
print(json.dumps({"reward": float(second.strip() == task["label"])}))
