"""`reasoning_gym`: the generator's own scorer, with its partial credit.

The prompt's metadata has what the scorer needs: either `metadata["entry"]` is the generated entry (question, answer,
metadata with source_dataset), or `metadata` itself has `source_dataset` and the label is the answer.

Some scorers pass the answer to `eval`, directly or through sympy's `parse_expr`. Here they get parsers that call
nothing.
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
"""Data sets whose scorers evaluate an answer to accept lists. `bitwise_arithmetic` evaluates the problem."""


def reward(response: str, sample: Sample) -> float:
    """Return the generator's score, from 0.0 to 1.0. Raises ValueError if the sample names no generator."""
    entry = entry_of(sample)
    from reasoning_gym import get_score_answer_fn  # late: takes 1 s

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
    """Return the entry for the scorer: question, answer and metadata with source_dataset."""
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
    r"""Return the last `<answer>`, or the last `\boxed{}`, or all text after the thinking."""
    answer = answer_of(response)
    if (tagged := _last_tagged(answer)) is not None:
        return tagged.strip()
    boxed = last_boxed(answer)
    return answer if boxed is None else boxed.strip()


def _last_tagged(text: str) -> str | None:
    """Return the content of the last pair of tags. Pairs are counted from the beginning."""
    content, at = None, 0
    while (start := text.find(_OPENS, at)) >= 0 and (end := text.find(_CLOSES, start + len(_OPENS))) >= 0:
        content, at = text[start + len(_OPENS) : end], end + len(_CLOSES)
    return content
