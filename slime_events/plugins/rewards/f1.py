"""`f1`: overlap of words between answer and label (SQuAD's token F1 with HotpotQA's rule for yes and no)."""

from __future__ import annotations

import re
import string
from collections import Counter

from slime_events.plugins.sample import Sample, without_end

_CLOSED_ANSWERS = ("yes", "no", "noanswer")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def reward(response: str, sample: Sample) -> float:
    """F1, 0 to 1."""
    return f1_score(without_end(response), sample.label or "")[0]


def f1_score(prediction: str | None, label: str) -> tuple[float, float, float]:
    """(F1, precision, recall) over words, without case, punctuation and articles.

    All zero without a prediction or a common word, and where one side is yes, no or noanswer and the other differs.
    """
    nothing = (0.0, 0.0, 0.0)
    if prediction is None:
        return nothing
    given, truth = normalize_answer(prediction), normalize_answer(label)
    if given != truth and (given in _CLOSED_ANSWERS or truth in _CLOSED_ANSWERS):
        return nothing
    given_words, truth_words = given.split(), truth.split()
    common = (Counter(given_words) & Counter(truth_words)).total()
    if common == 0:
        return nothing
    precision, recall = common / len(given_words), common / len(truth_words)
    return 2 * precision * recall / (precision + recall), precision, recall


def normalize_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
