"""The code agent's tasks: `python tasks.py OUT` writes `train.jsonl`. A program must print the value of a sum."""

import json
import random
import sys
from pathlib import Path


def main(out: Path, seed: int = 0, tasks: int = 2048) -> None:
    """Write the tasks. The same seed writes the same tasks."""
    rng = random.Random(seed)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "train.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(tasks):
            terms = [rng.randint(1, 9)] + [rng.choice((-1, 1)) * rng.randint(1, 9) for _ in range(3)]
            messages = [{"role": "user", "content": str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])}]
            file.write(json.dumps({"messages": messages, "label": str(sum(terms))}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
