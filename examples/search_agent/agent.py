"""An agent that may search before it answers, as Search-R1: `--agent-command "python agent.py pages.sqlite"`.

It knows nothing of training: the client of OpenAI finds the model by OPENAI_BASE_URL. The model says
`<search>words</search>`, gets what was found, and ends with `<answer>...</answer>`. The last line of the output is the
reward.
"""

import json
import re
import sqlite3
import sys

from openai import OpenAI

MOST_TURNS = 3
SEARCH = re.compile(r"<search>(.*?)</search>")
ANSWER = re.compile(r"<answer>(.*?)</answer>")


def search(pages: sqlite3.Connection, words: str, most: int = 1) -> str:
    """The best pages, by BM25. The words are words alone, never a query of FTS."""
    query = " ".join(f'"{word}"' for word in re.findall(r"\w+", words))
    if not query:
        return "nothing"
    rows = pages.execute("SELECT text FROM pages WHERE pages MATCH ? ORDER BY rank LIMIT ?", (query, most)).fetchall()
    return "\n".join(text for (text,) in rows) or "nothing"


def answer(client: OpenAI, pages: sqlite3.Connection, messages: list[dict[str, str]]) -> tuple[str, int]:
    """What the model answers, and how often it has searched."""
    for searches in range(MOST_TURNS):
        said = client.chat.completions.create(model="default", messages=messages, max_tokens=32)
        text = said.choices[0].message.content or ""
        if found := ANSWER.search(text):
            return found[1].strip(), searches
        wanted = SEARCH.search(text)
        messages = [
            *messages,
            {"role": "assistant", "content": text},
            {"role": "user", "content": search(pages, wanted[1]) if wanted else "nothing"},
        ]
    return "", MOST_TURNS


def main() -> None:
    task = json.load(sys.stdin)
    with sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True) as pages:
        text, searches = answer(OpenAI(max_retries=5), pages, task["prompt"])
    print(json.dumps({"reward": float(text == task["label"]), "metadata": {"searches": searches}}))


if __name__ == "__main__":
    main()
