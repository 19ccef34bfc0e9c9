"""A response against the instructions that its prompt gave: 1.0 where it keeps to all of them.

The sample's metadata names them as slime's data sets do: `instruction_id_list`, and `kwargs` with a dict for each (or
one for all). Nothing is downloaded, and no text of a model is evaluated.

The verdicts are those of IFBench's strict evaluation, but for these. The thinking, up to `</think>`, and the end token
of a response are not read. Where IFBench fails over a response, or lets one pass that does not do what the instruction
says (no bullet at all, a ratio of nothing to nothing, `and` beside `And` as two conjunctions, the month 0), ours goes
by the instruction. Tokens are cut by rules of our own (`text.py`), not NLTK's, and an emoji may be several characters.
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
"""`(response, **kwargs)`: its other arguments are texts and whole numbers from the sample's `kwargs`."""

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
"""A function of each file that a verdict depends on, beside this one."""


def reward(response: str, sample: Sample) -> float:
    """1.0 or 0.0. Raises UngradableSample where the metadata does not say what was asked for."""
    asked = instructions_of(sample.metadata)
    return float(keeps_to(without_end(response).rpartition("</think>")[2].strip("\n"), asked))


def compute_ifbench_reward(response: str | None, label: Any, metadata: Mapping[str, Any] | None = None) -> float:
    """slime's function: the response as it is. Without one, or without instructions, the reward is 0."""
    instructions = read_instructions(metadata or {})
    return float(bool(instructions) and keeps_to(response or "", instructions))


def instructions_of(metadata: Any) -> list[functools.partial[bool]]:
    """As `read_instructions`. Raises UngradableSample where there are none, too."""
    if not (isinstance(metadata, dict) and (instructions := read_instructions(metadata))):
        raise UngradableSample("ifbench needs the instructions: put their ids into metadata.instruction_id_list")
    return instructions


def keeps_to(response: str, instructions: Sequence[functools.partial[bool]]) -> bool:
    """All of them. An empty response keeps to none."""
    return bool(response.strip()) and all(check(response) for check in instructions)


def read_instructions(metadata: Mapping[str, Any]) -> list[functools.partial[bool]]:
    """The checks that a sample's metadata asks for, each with its arguments.

    Raises UngradableSample for an id that IFBench does not have, and for arguments that are missing or of another type.
    """
    names = [
        name for one in metadata.get("instruction_id_list") or () if one is not None and (name := str(one).strip())
    ]
    given = metadata.get("kwargs")
    given = [given] * len(names) if isinstance(given, dict) else list(given or ())
    # As in slime: the last dict is for all instructions that are left.
    given += (given[-1:] or [{}]) * (len(names) - len(given))
    return [_instruction(name, arguments) for name, arguments in zip(names, given, strict=False)]


def _instruction(name: str, given: Any) -> functools.partial[bool]:
    if name not in CHECKS:
        raise UngradableSample(f"IFBench has no instruction {name!r} (metadata.instruction_id_list)")
    arguments = given if isinstance(given, dict) else {}
    wanted = list(inspect.signature(CHECKS[name]).parameters.values())[1:]
    return functools.partial(
        CHECKS[name], **{one.name: _argument(name, one, arguments.get(one.name)) for one in wanted}
    )


def _argument(name: str, wanted: inspect.Parameter, given: Any) -> Any:
    if wanted.annotation == "str":
        if isinstance(given, str) and given.strip():
            return given
    elif isinstance(given, int | float) and not isinstance(given, bool) and given >= 0 and given == int(given):
        return int(given)
    kind = "a text" if wanted.annotation == "str" else "a whole number"
    said = "nothing" if given is None else repr(given)[:80]
    raise UngradableSample(f"{name} needs {kind} as {wanted.name} (metadata.kwargs), and has {said}")
