"""`reasoning_gym`: the generator's own scorer, with its partial credit.

The data set's line carries what the scorer needs: `metadata["entry"]` is the generated entry (question, answer,
metadata with source_dataset), or `metadata` has `source_dataset` itself and the label is the answer.

Some scorers give the answer to `eval`, by themselves or through sympy's `parse_expr`. They get readers
that call nothing.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import Any

from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.expression import evaluate
from slime_events.plugins.sample import Sample, answer_of

_OPENS, _CLOSES = "<answer>", "</answer>"
_LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Data sets whose scorers evaluate an answer, to accept lists. That of `bitwise_arithmetic` evaluates the problem."""


def reward(response: str, sample: Sample) -> float:
    """0.0 to 1.0 by the generator's `score_answer`. Raises ValueError where the sample does not name its generator."""
    entry = entry_of(sample)
    from reasoning_gym import get_score_answer_fn  # late: 1 s that only its users pay

    name = entry["metadata"]["source_dataset"]
    score = get_score_answer_fn(name)
    if name in _LISTS:
        score.__globals__["eval"] = ast.literal_eval
    with _nothing_evaluated():
        return float(score(extract_answer(response), entry))


@contextlib.contextmanager
def _nothing_evaluated() -> Iterator[None]:
    from sympy.parsing import sympy_parser

    usual = sympy_parser.eval_expr
    sympy_parser.eval_expr = evaluate
    try:
        yield
    finally:
        sympy_parser.eval_expr = usual


def entry_of(sample: Sample) -> dict[str, Any]:
    """The entry that the scorer takes: question, answer and metadata with source_dataset."""
    entry = sample.metadata.get("entry")
    if entry is None:
        entry = {"question": sample.prompt, "answer": sample.label, "metadata": sample.metadata}
    if not isinstance(entry, dict) or "source_dataset" not in (entry.get("metadata") or {}):
        raise ValueError(
            "reasoning_gym needs the generator's name: put the generated entry into metadata.entry, "
            "or source_dataset into metadata"
        )
    return entry


def extract_answer(response: str) -> str:
    r"""The last `<answer>`, else the last `\boxed{}`, else all that follows the thinking."""
    answer = answer_of(response)
    if (tagged := _last_tagged(answer)) is not None:
        return tagged.strip()
    boxed = last_boxed(answer)
    return answer if boxed is None else boxed.strip()


def _last_tagged(text: str) -> str | None:
    """What stands in the last pair of tags, pairs being counted from the beginning."""
    found, at = None, 0
    while (start := text.find(_OPENS, at)) >= 0 and (end := text.find(_CLOSES, start + len(_OPENS))) >= 0:
        found, at = text[start + len(_OPENS) : end], end + len(_CLOSES)
    return found
