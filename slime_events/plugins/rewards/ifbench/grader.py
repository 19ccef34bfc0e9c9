"""A response against the instructions in its prompt: 1.0 if it follows all of them.

The sample's metadata names the instructions as slime's data sets do: `instruction_id_list`, and `kwargs` with a dict
for each (or one for all). Nothing is downloaded, and no text of a model is evaluated.

The verdicts are those of IFBench's strict evaluation, with these exceptions. The thinking, up to `</think>`, and the
end token of a response are not read. If IFBench raises on a response, or accepts one that does not follow the
instruction (no bullet at all, a ratio of nothing to nothing, `and` beside `And` as two conjunctions, the month 0), ours
follows the instruction. Our own rules cut tokens (`text.py`), not NLTK's, and an emoji may be several characters.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schemas.errors import UngradableSample
from slime_events.plugins.rewards.ifbench import amounts, layout, tasks, wording
from slime_events.plugins.rewards.ifbench.text import sentences
from slime_events.plugins.sample import Sample, without_end

Check = Callable[..., bool]
"""`(response, **kwargs)`. The keyword arguments are texts and whole numbers from the sample's `kwargs`."""

CHECKS: Mapping[str, Check] = {
    "count:conjunctions": amounts.conjunctions,
    "count:keywords_multiple": amounts.keywords,
    "count:numbers": amounts.numbers,
    "count:person_names": amounts.person_names,
    "count:pronouns": amounts.pronouns,
    "count:punctuation": amounts.punctuation,
    "count:unique_word_count": amounts.unique_words,
    "count:word_count_range": amounts.word_range,
    "count:words_japanese": amounts.japanese_words,
    "custom:character_reverse": tasks.letters_reversed,
    "custom:csv_city": tasks.city_csv,
    "custom:csv_quotes": tasks.quoted_csv,
    "custom:csv_special_character": tasks.special_csv,
    "custom:date_format_list": tasks.dates,
    "custom:european_capitals_sort": tasks.capitals,
    "custom:mcq_count_length": tasks.questions,
    "custom:multiples": tasks.multiples,
    "custom:reverse_newline": tasks.african_countries,
    "custom:sentence_alphabet": tasks.alphabet_story,
    "custom:word_reverse": tasks.words_reversed,
    "format:emoji": layout.emoji,
    "format:line_indent": layout.line_indent,
    "format:list": layout.marked_list,
    "format:newline": layout.newline,
    "format:no_bullets_bullets": layout.sentences_then_bullets,
    "format:no_whitespace": layout.no_whitespace,
    "format:options": layout.options,
    "format:output_template": layout.template,
    "format:parentheses": layout.parentheses,
    "format:quote_unquote": layout.quote_unquote,
    "format:quotes": layout.quotes,
    "format:sub-bullets": layout.sub_bullets,
    "format:thesis": layout.thesis,
    "format:title_case": layout.title_case,
    "ratio:overlap": amounts.overlap,
    "ratio:sentence_balance": amounts.sentence_balance,
    "ratio:sentence_type": amounts.sentence_types,
    "ratio:sentence_words": amounts.sentence_characters,
    "ratio:stop_words": amounts.stop_words,
    "repeat:repeat_change": tasks.repeat_change,
    "repeat:repeat_simple": tasks.repeat_simple,
    "repeat:repeat_span": tasks.repeat_span,
    "sentence:alliteration_increment": wording.alliteration,
    "sentence:increment": wording.sentence_increment,
    "sentence:keyword": wording.keyword_in_sentence,
    "words:alphabet": wording.alphabet,
    "words:consonants": wording.consonants,
    "words:keywords_specific_position": wording.keyword_at,
    "words:last_first": wording.last_first,
    "words:no_consecutive": wording.no_consecutive,
    "words:odd_even_syllables": wording.odd_even_syllables,
    "words:palindrome": wording.palindromes,
    "words:paragraph_last_first": wording.paragraph_last_first,
    "words:prime_lengths": wording.prime_lengths,
    "words:repeats": wording.repeats,
    "words:start_verb": wording.start_verb,
    "words:vowel": wording.vowels,
    "words:words_position": wording.second_words,
}
"""Every instruction of IFBench, by its id."""

SOURCES: tuple[Callable[..., Any], ...] = (*{check.__module__: check for check in CHECKS.values()}.values(), sentences)
"""A function of each further file that a verdict depends on."""


def reward(response: str, sample: Sample) -> float:
    """Return 1.0 or 0.0. Raises UngradableSample if the metadata has no valid instructions."""
    instructions = instructions_of(sample.metadata)
    return float(follows(without_end(response).rpartition("</think>")[2].strip("\n"), instructions))


def compute_ifbench_reward(response: str | None, label: object, metadata: Mapping[str, Any] | None = None) -> float:
    """Grade the response as it is (slime's function). Without a response or without instructions the reward is 0."""
    instructions = read_instructions(metadata or {})
    return float(bool(instructions) and follows(response or "", instructions))


def instructions_of(metadata: object) -> list[functools.partial[bool]]:
    """Return `read_instructions(metadata)`. Raises UngradableSample also if there are no instructions."""
    if not (isinstance(metadata, dict) and (instructions := read_instructions(metadata))):
        raise UngradableSample("ifbench needs the instructions: put their ids into metadata.instruction_id_list")
    return instructions


def follows(response: str, instructions: Sequence[functools.partial[bool]]) -> bool:
    """Return whether the response follows all instructions. An empty response follows none."""
    return bool(response.strip()) and all(check(response) for check in instructions)


def read_instructions(metadata: Mapping[str, Any]) -> list[functools.partial[bool]]:
    """Return the checks that a sample's metadata names, each with its arguments.

    Raises UngradableSample for an id that IFBench does not have, and for arguments that are missing or of the wrong
    type.
    """
    names = [
        name for item in metadata.get("instruction_id_list") or () if item is not None and (name := str(item).strip())
    ]
    kwargs = metadata.get("kwargs")
    kwargs = [kwargs] * len(names) if isinstance(kwargs, dict) else list(kwargs or ())
    # As in slime, the last dict applies to all remaining instructions.
    kwargs += (kwargs[-1:] or [{}]) * (len(names) - len(kwargs))
    return [_instruction(name, arguments) for name, arguments in zip(names, kwargs, strict=False)]


def _instruction(name: str, kwargs: object) -> functools.partial[bool]:
    if name not in CHECKS:
        raise UngradableSample(f"IFBench has no instruction {name!r} (metadata.instruction_id_list)")
    arguments = kwargs if isinstance(kwargs, dict) else {}
    parameters = list(inspect.signature(CHECKS[name]).parameters.values())[1:]
    return functools.partial(
        CHECKS[name],
        **{parameter.name: _argument(name, parameter, arguments.get(parameter.name)) for parameter in parameters},
    )


def _argument(name: str, parameter: inspect.Parameter, value: object) -> str | int:
    if parameter.annotation == "str":
        if isinstance(value, str) and value.strip():
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value):
        return int(value)
    kind = "a text" if parameter.annotation == "str" else "a whole number"
    actual = "nothing" if value is None else repr(value)[:80]
    raise UngradableSample(f"{name} needs {kind} as {parameter.name} (metadata.kwargs), but has {actual}")
