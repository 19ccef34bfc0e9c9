"""An agent that may search before it answers, like Search-R1: `--agent-command "python agent.py pages.sqlite"`.

It contains no code about training: OpenAI's client finds the model by OPENAI_BASE_URL. The model writes
`<search>words</search>`, gets the best page, and ends with `<answer>...</answer>`. The last line of the output is the
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
    """Return the best pages by BM25. The words are quoted, so they cannot contain FTS syntax."""
    query = " ".join(f'"{word}"' for word in re.findall(r"\w+", words))
    if not query:
        return "nothing"
    rows = pages.execute("SELECT text FROM pages WHERE pages MATCH ? ORDER BY rank LIMIT ?", (query, most)).fetchall()
    return "\n".join(text for (text,) in rows) or "nothing"


def answer(client: OpenAI, pages: sqlite3.Connection, messages: list[dict[str, str]]) -> tuple[str, int]:
    """Return the model's answer, and the number of its searches."""
    for searches in range(MOST_TURNS):
        completion = client.chat.completions.create(model="default", messages=messages, max_tokens=32)
        text = completion.choices[0].message.content or ""
        if match := ANSWER.search(text):
            return match[1].strip(), searches
        query = SEARCH.search(text)
        messages = [
            *messages,
            {"role": "assistant", "content": text},
            {"role": "user", "content": search(pages, query[1]) if query else "nothing"},
        ]
    return "", MOST_TURNS


def main() -> None:
    task = json.load(sys.stdin)
    with sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True) as pages:
        text, searches = answer(OpenAI(max_retries=5), pages, task["prompt"])
    print(json.dumps({"reward": float(text == task["label"]), "metadata": {"searches": searches}}))


if __name__ == "__main__":
    main()
