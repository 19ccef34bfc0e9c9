"""`f1`: word overlap of answer and label (SQuAD's token F1 with HotpotQA's rule for yes and no)."""

from __future__ import annotations

import re
import string
from collections import Counter

from slime_events.plugins.sample import Sample, without_end

_CLOSED_ANSWERS = ("yes", "no", "noanswer")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def reward(response: str, sample: Sample) -> float:
    """Return F1, from 0 to 1."""
    return f1_score(without_end(response), sample.label or "")[0]


def f1_score(prediction: str | None, label: str) -> tuple[float, float, float]:
    """Return (F1, precision, recall) over words, without case, punctuation and articles.

    All are zero without a prediction or a common word, and if one side is yes, no or noanswer and the other differs.
    """
    nothing = (0.0, 0.0, 0.0)
    if prediction is None:
        return nothing
    answer, truth = normalize_answer(prediction), normalize_answer(label)
    if answer != truth and (answer in _CLOSED_ANSWERS or truth in _CLOSED_ANSWERS):
        return nothing
    answer_words, truth_words = answer.split(), truth.split()
    common = (Counter(answer_words) & Counter(truth_words)).total()
    if common == 0:
        return nothing
    precision, recall = common / len(answer_words), common / len(truth_words)
    return 2 * precision * recall / (precision + recall), precision, recall


def normalize_answer(text: str) -> str:
    """Return the text in lower case without punctuation and articles, with single blanks."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
