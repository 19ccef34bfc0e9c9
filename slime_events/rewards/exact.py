"""`exact`: the answer is the label, letter by letter."""

from __future__ import annotations

from slime_events.sample import Sample

END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
"""End tokens that stay in the text when special tokens are not skipped; they are no part of an answer."""


def reward(response: str, sample: Sample) -> float:
    """1.0 or 0.0."""
    return float(sample.label is not None and answer_of(response) == str(sample.label).strip())


def answer_of(response: str) -> str:
    """What follows the last `</think>`, or the whole response, without end tokens and outer blanks."""
    answer = response.rsplit("</think>", 1)[-1].strip()
    while (shorter := _without_end(answer)) != answer:
        answer = shorter
    return answer


def _without_end(text: str) -> str:
    for token in END_OF_TURN:
        text = text.removesuffix(token)
    return text.strip()
