"""The search agent's pages and questions: `python pages.py OUT` writes `pages.sqlite` and `train.jsonl`.

A page defines a number for a name (`kz=5`); a question asks for a sum with it (`kz+3`). The numbers are random, so the
model must search.
"""

import itertools
import json
import random
import sqlite3
import string
import sys
from pathlib import Path


def main(out: Path, seed: int = 0, questions: int = 2048) -> None:
    """Write the pages and questions. The same seed writes the same files."""
    rng = random.Random(seed)
    names = ["".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2)]
    values = {name: rng.randint(1, 9) for name in names}
    out.mkdir(parents=True, exist_ok=True)
    database = out / "pages.sqlite"
    database.unlink(missing_ok=True)
    with sqlite3.connect(database) as pages:
        pages.execute("CREATE VIRTUAL TABLE pages USING fts5(name, text)")
        pages.executemany("INSERT INTO pages VALUES (?, ?)", [(name, f"{name}={values[name]}") for name in names])
    with (out / "train.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(questions):
            name, added = rng.choice(names), rng.randint(1, 9)
            messages = [{"role": "user", "content": f"{name}+{added}"}]
            file.write(json.dumps({"messages": messages, "label": str(values[name] + added)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
