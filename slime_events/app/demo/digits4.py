"""`digits4`: chains of four one-digit terms such as `8-5-1+2`, with questions held out by a hash of their text.

There are 9^4 x 2^3 = 52,488 questions (terms 1 to 9, each sign plus or minus). One in fifty is held out: neither the
base checkpoint nor the demo's GRPO ever sees it, so that evaluation measures the skill and not the memory.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from schemas.doc import doc

TERMS = 4
QUESTIONS = 9**TERMS * 2 ** (TERMS - 1)
HELD_OUT_ONE_IN = 50
TRAIN_FILE = "train.jsonl"
EVAL_FILE = "eval.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the task, such as `8-5-1+2`."""

    terms: Annotated[tuple[int, ...], doc("Terms in order, with their signs: (8, -5, -1, 2). The first is positive")]

    @property
    def text(self) -> str:
        first, *rest = self.terms
        return str(first) + "".join(f"{term:+d}" for term in rest)

    @property
    def answer(self) -> str:
        return str(sum(self.terms))

    @property
    def held_out(self) -> bool:
        """Whether the question is for evaluation, by the SHA-256 of its text alone."""
        digest = hashlib.sha256(self.text.encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def question(number: int) -> Question:
    """Return question `number` of 0 .. QUESTIONS - 1, in mixed radix: the signs in the low bits, then the terms."""
    if not 0 <= number < QUESTIONS:
        raise IndexError(f"digits4 has questions 0 to {QUESTIONS - 1}, not {number}")
    signs, number = number % 2 ** (TERMS - 1), number // 2 ** (TERMS - 1)
    terms = []
    for place in range(TERMS):
        number, digit = divmod(number, 9)
        negative = place > 0 and signs >> (place - 1) & 1
        terms.append(-(digit + 1) if negative else digit + 1)
    return Question(tuple(terms))


def take(count: int, seed: int, *, held_out: bool) -> list[Question]:
    """Return training or held-out questions, each once, in an order that depends only on `seed`.

    Raises ValueError if there are fewer than `count`.
    """
    numbers = list(range(QUESTIONS))
    random.Random(seed).shuffle(numbers)
    questions = (item for item in map(question, numbers) if item.held_out == held_out)
    drawn = list(itertools.islice(questions, count))
    if len(drawn) < count:
        side = "held-out" if held_out else "training"
        raise ValueError(f"digits4 has only {len(drawn)} {side} questions, not {count}")
    return drawn


def write_data(folder: Path, seed: int = 0, train: int = 4096, held_out: int = 128) -> tuple[Path, Path]:
    """Write `train.jsonl` and `eval.jsonl`, and return both paths.

    Each line is an object with `messages` (one user turn) and `label`. The same seed and counts give the same bytes.
    """
    sides = [take(train, seed, held_out=False), take(held_out, seed, held_out=True)]
    rows = [[{"messages": [{"role": "user", "content": q.text}], "label": q.answer} for q in side] for side in sides]
    return write_rows(folder, *rows)


def write_rows(folder: Path, train: Iterable[dict[str, Any]], held_out: Iterable[dict[str, Any]]) -> tuple[Path, Path]:
    """Write the two prompt files, one JSON object per line, and return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / TRAIN_FILE, folder / EVAL_FILE
    for path, rows in zip(paths, (train, held_out), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths
