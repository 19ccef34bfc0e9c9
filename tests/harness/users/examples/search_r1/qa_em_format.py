"""Exact match of the last answer, with a little for the form."""

import re
import string


def normalize(text: str) -> str:
    without = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", without).split())


def compute_score_em(solution_str: str, ground_truth: dict, format_score: float = 0.0, score: float = 1.0) -> float:
    answers = re.findall(r"<answer>(.*?)</answer>", solution_str, re.DOTALL)
    if not answers:
        return 0.0
    if normalize(answers[-1]) in {normalize(target) for target in ground_truth["target"]}:
        return score
    return format_score if "<information>" in solution_str else 0.0
