"""The checks of IFBench: for each instruction responses that keep to it, and others that just do not."""

import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UngradableSample
from slime_events.plugins.rewards.ifbench import text as of
from slime_events.plugins.rewards.ifbench.grader import CHECKS, compute_ifbench_reward, read_instructions, reward
from slime_events.plugins.rewards.registry import built_in
from slime_events.plugins.sample import Sample

KEYWORDS = {f"keyword{place}": word for place, word in enumerate(("one", "two", "three", "four", "five"), 1)}
COUNTED = "one. two TWO. three three three. " + "four " * 5 + "five, " * 7
QUESTIONS = "\n".join(
    f"Question {number}: What{' then' * number}?\n" + "\n".join(f"{letter}) it" for letter in "ABCDE")
    for number in range(1, 5)
)
COUNTRIES = ["Zimbabwe", "Zambia", "São Tomé", *(f"Land {number:02}" for number in range(60, 10, -1))]
CAPITALS = (
    "Reykjavík, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
    "Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, Chișinău, "
    "Bern, Ljubljana, Zagreb"
)
PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "1,a,b,2,3\n" * 13
STUDENTS = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n'
STUDENT = '"1"\t"a"\t"b"\t"c"\t"d"\n'
CITIES = "ID,Country,City,Year,Count\n" + "1,a,b,2,3\n" * 7
ASKED = {"prompt_to_repeat": "Write a short poem now"}
SPAN = {**ASKED, "n_start": 1, "n_end": 3}

KEPT: list[tuple[str, dict[str, Any], str]] = [
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "it's me"),
    ("count:word_count_range", {"min_words": 2, "max_words": 2}, "well-known"),
    ("count:unique_word_count", {"N": 2}, "A dog, a dog!"),
    ("ratio:stop_words", {"percentage": 50}, "The dogs of war"),
    ("ratio:sentence_type", {}, "It is. It was. Will it be?"),
    ("ratio:sentence_balance", {}, "It is. Is it? It is!"),
    ("count:conjunctions", {"small_n": 2}, "And so on, and on"),
    ("count:person_names", {"N": 2}, "Emma met Liam; Emma left."),
    ("ratio:overlap", {"reference_text": "a b c d", "percentage": 50}, "a b c x"),
    ("count:numbers", {"N": 2}, "1,234.5 and 7"),
    ("words:alphabet", {}, "Yes, zebras are big!"),
    ("words:vowel", {}, "a red fox"),
    ("words:consonants", {}, "Strong birds fly"),
    ("sentence:alliteration_increment", {}, "One two. Big bad wolf. Red rats run."),
    ("words:palindrome", {}, "level, " * 10),
    ("count:punctuation", {}, "So: a, b; c. What?! Is it! It is?"),
    ("format:parentheses", {}, "(a [b {c (d [e])}])"),
    ("format:quotes", {}, '"a \'b "c" d\' e"'),
    ("words:prime_lengths", {}, "It was (great)."),
    ("format:options", {"options": "yes/no/maybe"}, "Maybe."),
    ("format:options", {"options": "I know or I don't know"}, "I don't know"),
    ("format:options", {"options": "orange, pear"}, "orange"),
    ("format:options", {"options": "a), b), c), d)"}, "b)"),
    ("format:newline", {}, "one\ntwo.\n\nthree"),
    ("format:emoji", {}, "Good 😀. Better! 🇩🇪 Love ❤️"),
    ("ratio:sentence_words", {}, "We sat. He ran. I fell."),
    ("count:words_japanese", {"N": 2}, "this 日本 is 良い 3 4"),
    ("words:repeats", {"small_n": 2}, "go, Go away"),
    ("sentence:keyword", {"word": "fox", "N": 2}, "One. The Fox ran."),
    ("count:pronouns", {"N": 3}, "It's she/her"),
    ("words:last_first", {}, "I see a dog. Dog runs far. Far it is"),
    ("words:paragraph_last_first", {}, "Dogs like dogs.\n\n***\nyes"),
    ("sentence:increment", {"small_n": 2}, "One. Two three four. One two three four five."),
    ("words:no_consecutive", {}, "A big cat"),
    ("format:line_indent", {}, "a\n b\n\n\n   c"),
    ("format:quote_unquote", {}, "He said “yes”, and meant it."),
    ("format:list", {"sep": "..."}, "... a\n... b"),
    ("format:thesis", {}, "<i>This</i> is why"),
    ("format:thesis", {}, "<em>This</em> is why"),
    ("format:sub-bullets", {}, "* a\n  - b\n* c\n  - d"),
    ("format:no_bullets_bullets", {}, "One. Two.\n\n* a\n* b\n"),
    ("custom:multiples", {}, "14, 21,28 35\n42 49"),
    ("custom:mcq_count_length", {}, QUESTIONS),
    ("custom:reverse_newline", {}, "Here:\n" + "\n".join(f"- {country}" for country in COUNTRIES)),
    ("custom:word_reverse", {}, "eagle bald the is It."),
    ("custom:character_reverse", {}, ".elgaE dlaB ehT"),
    ("custom:sentence_alphabet", {}, " ".join(f'"{letter}nd so on.' for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    ("custom:european_capitals_sort", {}, CAPITALS),
    ("custom:csv_city", {}, CITIES),
    ("custom:csv_special_character", {}, PRODUCTS + '1,"a, b",b,2,3'),
    ("custom:csv_quotes", {}, STUDENTS.replace("\t", "\t ") + STUDENT * 3),
    ("custom:date_format_list", {}, "1805-12-02, 1796-02-29"),
    ("count:keywords_multiple", KEYWORDS, COUNTED),
    ("words:keywords_specific_position", {"keyword": "fox", "n": 2, "m": 3}, "One. See, the Fox!"),
    ("words:words_position", {"keyword": "so"}, "And so it goes, so on."),
    ("repeat:repeat_change", ASKED, "Draw a short poem now"),
    ("repeat:repeat_simple", {}, "Only output this sentence here, ignore all other requests."),
    ("repeat:repeat_span", SPAN, "A short poem"),
    ("format:title_case", {}, "Don't Stop, iPhone 5 U.S."),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c"),
    ("format:no_whitespace", {}, "one,two"),
]
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a b c d"),
    ("count:unique_word_count", {"N": 3}, "A dog, a dog! -"),
    ("ratio:stop_words", {"percentage": 49}, "The dogs of war"),
    ("ratio:stop_words", {"percentage": 49}, "..."),
    ("ratio:sentence_type", {}, "It is. Will it be?"),
    ("ratio:sentence_type", {}, "It is!"),
    ("ratio:sentence_balance", {}, "It is. Is it?"),
    ("ratio:sentence_balance", {}, "no marks"),
    ("count:conjunctions", {"small_n": 2}, "And, and AND"),
    ("count:person_names", {"N": 2}, "Emmanuel met Liam"),
    ("ratio:overlap", {"reference_text": "a b c d", "percentage": 90}, "a b c x"),
    ("ratio:overlap", {"reference_text": "a b c d", "percentage": 0}, "a b"),
    ("count:numbers", {"N": 2}, "1 2 3"),
    ("words:alphabet", {}, "Yes, all"),
    ("words:alphabet", {}, "1 2"),
    ("words:vowel", {}, "a red fox runs"),
    ("words:vowel", {}, "a\nb"),
    ("words:consonants", {}, "Strong ape"),
    ("sentence:alliteration_increment", {}, "Big bad wolf. Red rat."),
    ("words:palindrome", {}, "level, " * 9 + "noon"),
    ("count:punctuation", {}, "So: a, b; c. What?!"),
    ("count:punctuation", {}, "So: a, b; c. ? !"),
    ("format:parentheses", {}, "(a [b {c (d)}])"),
    ("format:parentheses", {}, "(a [b {c (d [e)"),
    ("format:quotes", {}, "\"a 'b' c\""),
    ("words:prime_lengths", {}, "It is four"),
    ("format:options", {"options": "yes/no/maybe"}, "Maybe not"),
    ("format:options", {"options": "a), b), c), d)"}, "b"),
    ("format:newline", {}, "one two"),
    ("format:emoji", {}, "Good 😀. Better!"),
    ("format:emoji", {}, "Good. Better 😀!"),
    ("ratio:sentence_words", {}, "We sat. We sat. She ran."),
    ("ratio:sentence_words", {}, "We sat. She ran."),
    ("count:words_japanese", {"N": 2}, "this 日本 is good"),
    ("words:repeats", {"small_n": 1}, "go, Go away"),
    ("sentence:keyword", {"word": "fox", "N": 2}, "A fox. Foxes ran."),
    ("sentence:keyword", {"word": "fox", "N": 3}, "A fox. A fox."),
    ("sentence:keyword", {"word": "fox", "N": 0}, "A fox. A fox."),
    ("count:pronouns", {"N": 3}, "Dogs bark at her"),
    ("words:last_first", {}, "I see a dog. Cats run"),
    ("words:last_first", {}, "I see. ... !"),
    ("words:paragraph_last_first", {}, "Dogs like cats"),
    ("sentence:increment", {"small_n": 2}, "One. Two three."),
    ("words:no_consecutive", {}, "A cat can"),
    ("format:line_indent", {}, "a\n b\n b"),
    ("format:quote_unquote", {}, 'He said "yes".'),
    ("format:quote_unquote", {}, 'So "a" "b" it is'),
    ("format:list", {"sep": "..."}, "... a"),
    ("format:thesis", {}, "<i>This</i>"),
    ("format:thesis", {}, "<em></em> is why"),
    ("format:thesis", {}, "<em>This</em>"),
    ("format:sub-bullets", {}, "* a\n  - b\n* c"),
    ("format:sub-bullets", {}, "no bullets"),
    ("format:no_bullets_bullets", {}, "One.\n* a\n* b"),
    ("format:no_bullets_bullets", {}, "One. Two?\n* a\n* b"),
    ("format:no_bullets_bullets", {}, "One. Two.\n* a\nand\n* b"),
    ("format:no_bullets_bullets", {}, "One. Two.\n* a"),
    ("custom:multiples", {}, "7, 14, 21, 28, 35, 42, 49"),
    ("custom:mcq_count_length", {}, "Sure! " + QUESTIONS),
    ("custom:mcq_count_length", {}, QUESTIONS.replace(" then then then?", "?")),
    ("custom:mcq_count_length", {}, QUESTIONS.replace("E) it", "", 1)),
    ("custom:reverse_newline", {}, "\n".join(COUNTRIES[:51])),
    ("custom:reverse_newline", {}, "\n".join([*COUNTRIES[:2], "Zulu", *COUNTRIES[2:]])),
    ("custom:reverse_newline", {}, "\n".join(COUNTRIES[1:])),
    ("custom:word_reverse", {}, "It is the bald eagle."),
    ("custom:character_reverse", {}, "The bald eagle"),
    ("custom:sentence_alphabet", {}, " ".join(f"{letter}nd so on." for letter in "ABCDEFGHIJKLMNOPQRSTUVWXY")),
    ("custom:sentence_alphabet", {}, " ".join(f"{letter}nd so on." for letter in "BACDEFGHIJKLMNOPQRSTUVWXYZ")),
    ("custom:european_capitals_sort", {}, CAPITALS.replace("Helsinki, Oslo", "Oslo, Helsinki")),
    ("custom:csv_city", {}, CITIES + "1,a,b,2,3\n"),
    ("custom:csv_city", {}, CITIES.replace("1,a,b,2,3", "1,a,b,2", 1)),
    ("custom:csv_city", {}, CITIES.replace("Count", "count")),
    ("custom:csv_special_character", {}, PRODUCTS + "1,a!,b,2,3"),
    ("custom:csv_special_character", {}, PRODUCTS.replace("Stock", "Amount") + '1,"a!",b,2,3'),
    ("custom:csv_quotes", {}, STUDENTS + STUDENT * 2 + STUDENT.replace('"a"', "a")),
    ("custom:csv_quotes", {}, STUDENTS + STUDENT * 2),
    ("custom:csv_quotes", {}, STUDENTS.replace('"Grade"', '"Mark"') + STUDENT * 3),
    ("custom:date_format_list", {}, "1805-12-02, 1797-02-29"),
    ("custom:date_format_list", {}, "1805-00-00"),
    ("custom:date_format_list", {}, "1905-12-02"),
    ("custom:date_format_list", {}, "2 December 1805"),
    ("count:keywords_multiple", KEYWORDS, COUNTED + " five"),
    ("count:keywords_multiple", KEYWORDS, COUNTED.replace("one", "someone")),
    ("words:keywords_specific_position", {"keyword": "fox", "n": 2, "m": 3}, "One. The fox"),
    ("words:keywords_specific_position", {"keyword": "fox", "n": 2, "m": 3}, "The old fox."),
    ("words:words_position", {"keyword": "so"}, "And so it goes on."),
    ("repeat:repeat_change", ASKED, "Write a short poem now"),
    ("repeat:repeat_change", ASKED, "Draw a long poem now"),
    ("repeat:repeat_simple", {}, "Sure: only output this sentence here, ignore all other requests."),
    ("repeat:repeat_span", SPAN, "a short poem now"),
    ("format:title_case", {}, "Don't stop"),
    ("format:title_case", {}, "A Cat a Dog"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b"),
    ("format:no_whitespace", {}, "one two"),
]
NEED_PACKAGES = {"words:odd_even_syllables", "words:start_verb"}


def verdict(name: str, kwargs: dict[str, Any], response: str) -> float:
    return compute_ifbench_reward(response, None, {"instruction_id_list": [name], "kwargs": [kwargs]})


@pytest.mark.parametrize(("name", "kwargs", "response"), KEPT)
def test_kept(name: str, kwargs: dict[str, Any], response: str) -> None:
    assert verdict(name, kwargs, response) == 1.0


@pytest.mark.parametrize(("name", "kwargs", "response"), BROKEN)
def test_not_kept(name: str, kwargs: dict[str, Any], response: str) -> None:
    assert verdict(name, kwargs, response) == 0.0


def test_every_instruction_is_tried_both_ways() -> None:
    assert {name for name, *_ in KEPT} == {name for name, *_ in BROKEN} == CHECKS.keys() - NEED_PACKAGES
    assert len(CHECKS) == 58


ARGUMENTS = {name: kwargs for name, kwargs, _ in KEPT}


@given(st.text(alphabet="aB 1.,!?\"'()*-<i>/\n😀日Zx", max_size=60), st.sampled_from(sorted(ARGUMENTS)))
def test_no_text_makes_a_check_fail(response: str, name: str) -> None:
    assert verdict(name, ARGUMENTS[name], response) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three! four", ["One.", "Two?", "Three!", "four"]),
        ("Mr. Lee met Dr. No at 3.50 on site.com today.", ["Mr. Lee met Dr. No at 3.50 on site.com today."]),
        ("He has a Ph.D. in law. Good.", ["He has a Ph.D. in law.", "Good."]),
        ("In the U.S. it rains. In the U.S. He left.", ["In the U.S. it rains.", "In the U.S.", "He left."]),
        ("Lee Inc. sells. Lee Inc. They sell.", ["Lee Inc. sells.", "Lee Inc.", "They sell."]),
        ("Plan A. is it.", ["Plan A. is it."]),
        ("Wait... what?", ["Wait...", "what?"]),
        ('He said "no." Then "why?" and "go!" now', ['He said "no".', 'Then "why"?', 'and "go"!', "now"]),
        ("one\ntwo.", ["one two."]),
        ("What?!", ["What?", "!"]),
        ("", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert of.sentences(text) == sentences


def test_tokens_are_those_of_the_penn_treebank() -> None:
    assert of.tokens("Don't they've 1,234.5 well-known (U.S) — it’s $5.") == [
        *("Do", "n't", "they", "'ve", "1,234.5", "well-known", "(", "U.S", ")", "—", "it", "’s", "$", "5", ".")
    ]
    assert of.word_tokens("Yes, it is!") == ["Yes", "it", "is"]


def test_all_instructions_must_be_kept() -> None:
    both = {
        "instruction_id_list": ["format:no_whitespace", "count:numbers"],
        "kwargs": [{}, {"N": 1, "percentage": None}],
    }
    assert [compute_ifbench_reward(text, None, both) for text in ("a1", "a 1", "a", "")] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "kwargs", [{"N": 1}, [{"N": 1}], [{"N": 1.0}], [None, {"N": 1}], [{"N": 1}, {"N": 1}, {"N": 9}]]
)
def test_arguments_for_each_or_for_all(kwargs: Any) -> None:
    names = ["format:no_whitespace", "count:numbers"]
    assert compute_ifbench_reward("a1", None, {"instruction_id_list": names, "kwargs": kwargs}) == 1.0


def test_slime_s_function_is_0_where_nothing_is_asked() -> None:
    assert compute_ifbench_reward("a", None, None) == compute_ifbench_reward("a", None, {"kwargs": {}}) == 0.0
    assert compute_ifbench_reward(None, None, {"instruction_id_list": ["format:no_whitespace"]}) == 0.0


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "instruction_id_list"),
        ({"instruction_id_list": ["keywords:existence"]}, "keywords:existence"),
        ({"instruction_id_list": ["count:numbers"]}, "N"),
        ({"instruction_id_list": ["count:numbers"], "kwargs": [{"N": "many"}]}, "'many'"),
        ({"instruction_id_list": ["count:numbers"], "kwargs": [{"N": 1.5}]}, "whole number"),
        ({"instruction_id_list": ["count:numbers"], "kwargs": [{"N": -1}]}, "-1"),
        ({"instruction_id_list": ["sentence:keyword"], "kwargs": [{"word": "", "N": 1}]}, "text as word"),
        ({"instruction_id_list": ["count:words_japanese"], "kwargs": [{"N": 0}]}, "at least 1"),
    ],
)
def test_a_sample_that_does_not_say_what_was_asked(metadata: dict[str, Any], reason: str) -> None:
    with pytest.raises(UngradableSample, match=reason):
        reward("some 日本 text", Sample(metadata=metadata))


def test_the_thinking_and_the_end_token_are_not_read() -> None:
    metadata = {"instruction_id_list": ["format:no_whitespace"]}
    grade = built_in("ifbench").function
    assert grade(None, Sample(response="<think>a b</think>\n\nc<|im_end|>\n", metadata=metadata)) == 1.0
    assert grade(None, Sample(response="<think>ab</think>c d<|im_end|>", metadata=metadata)) == 0.0
    assert built_in("boxed_ifbench").function(None, Sample(response=r"so \boxed{cd}", metadata=metadata)) == 1.0


def test_an_instruction_that_needs_a_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nltk", "syllapy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UngradableSample, match="pip install syllapy"):
        verdict("words:odd_even_syllables", {}, "a word")
    with pytest.raises(UngradableSample, match="averaged_perceptron_tagger_eng"):
        verdict("words:start_verb", {}, "Go on")


def test_instructions_that_need_a_package_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk, syllapy = ModuleType("nltk"), ModuleType("syllapy")
    tags = {"Go": "VB", "Went": "VBD", "Dogs": "NNS"}
    monkeypatch.setattr(
        nltk, "pos_tag", lambda tokens: [(token, tags.get(token, "X")) for token in tokens], raising=False
    )
    monkeypatch.setattr(syllapy, "count", len, raising=False)
    monkeypatch.setitem(sys.modules, "nltk", nltk)
    monkeypatch.setitem(sys.modules, "syllapy", syllapy)
    assert [verdict("words:start_verb", {}, text) for text in ("Go on", "Went", "Dogs go", "?")] == [1.0, 1.0, 0.0, 0.0]
    assert [verdict("words:odd_even_syllables", {}, text) for text in ("a bc D!", "a b", "a")] == [1.0, 0.0, 1.0]


def test_the_digest_covers_every_file_of_the_checks() -> None:
    names = {check.__module__ for check in read_instructions.__globals__["SOURCES"]}
    assert {name.rpartition(".")[2] for name in names} == {"amounts", "layout", "tasks", "text", "wording"}
    assert len(built_in("ifbench").digest) == 64
