"""The agent's program of the attacked run, and what it sees of its environment. It imports the standard library alone.

`python -I -S program.py FOLDER`: one plain question, a reward of the answer's length, and a file with the environment.
"""

import json
import os
import sys
import urllib.request
import zlib
from pathlib import Path

BODY = {"model": "m", "max_tokens": 12, "messages": [{"role": "user", "content": "8-5+1"}]}


def main(folder: str) -> int:
    """Ask, note, and print the reward."""
    text = json.dumps(dict(os.environ))
    (Path(folder) / f"environment-{os.getpid() % 8}.json").write_text(text)
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(BODY).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
    print(json.dumps({"reward": zlib.crc32(body) % 5 / 4}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
