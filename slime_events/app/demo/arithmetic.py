"""`arithmetic`: sums of two numbers from 0 to 10 by reasoning-gym, with prompts on which SmolLM2 can earn a reward.

An example turn shows the expected form: without it the model chats, and no answer is a bare number. There are only 121
sums; one in five is held out by a hash of its expression. `metadata.entry` is the whole reasoning-gym entry, which
reasoning-gym's own scorer needs: it gives 1 for the bare number, and less the longer the text around it is.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime_events.app.demo.digits4 import write_rows

GENERATOR = "basic_arithmetic"
OPTIONS = {
    "min_terms": 2,
    "max_terms": 2,
    "min_digits": 1,
    "max_digits": 1,
    "operators": ["+"],
    "allow_parentheses": False,
    "allow_negation": False,
}
HELD_OUT_ONE_IN = 5
DRAWS = 2000  # enough to draw each of the 121 sums

EXAMPLE = (
    {"role": "system", "content": "You are a calculator."},
    {"role": "user", "content": "3 + 5"},
    {"role": "assistant", "content": "8"},
)

Entry = dict[str, Any]


def held_out(entry: Entry) -> bool:
    """Whether the sum is for evaluation, by the SHA-256 of its expression alone."""
    digest = hashlib.sha256(entry["metadata"]["expression"].encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def row(entry: Entry) -> dict[str, Any]:
    """Return one line of a prompt file: `messages`, `label`, and the entry itself in `metadata`."""
    return {
        "messages": [*EXAMPLE, {"role": "user", "content": entry["metadata"]["expression"]}],
        "label": entry["answer"],
        "metadata": {"entry": entry},
    }


def entries(seed: int) -> Iterator[Entry]:
    """Yield every sum once, in the order in which reasoning-gym draws them from `seed`."""
    import reasoning_gym

    seen: set[str] = set()
    for entry in reasoning_gym.create_dataset(GENERATOR, seed=seed, size=DRAWS, **OPTIONS):
        if entry["question"] not in seen:
            seen.add(entry["question"])
            yield entry


def write_data(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write `train.jsonl` and `eval.jsonl`; returns both paths. The same seed writes the same bytes."""
    drawn = list(entries(seed))
    train = (row(entry) for entry in drawn if not held_out(entry))
    return write_rows(folder, train, (row(entry) for entry in drawn if held_out(entry)))
