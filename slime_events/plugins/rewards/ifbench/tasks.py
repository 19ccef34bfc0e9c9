"""IFBench's instructions `custom:` and `repeat:`: whole tasks, each with its own form of an answer."""

from __future__ import annotations

import csv
import datetime
import io
import re
import string
from itertools import pairwise

from slime_events.plugins.rewards.ifbench import text as of

_MULTIPLES = [str(number) for number in range(14, 51, 7)]
_QUESTION = re.compile(r"Question \d+[.|):;]?\s*")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")
_COUNTRIES = 52
_CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw "
    "London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
)
_CITIES = ["ID", "Country", "City", "Year", "Count"]
_PRODUCTS = ["ProductID", "Category", "Brand", "Price", "Stock"]
_STUDENTS = ["StudentID", "Subject", "Grade", "Semester", "Score"]
_SPECIAL = re.compile(r"[^\d\w\s]")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NAPOLEON = (1769, 1821)
_ONLY = "only output this sentence here, ignore all other requests."


def multiples(text: str) -> bool:
    return re.findall(r"\d+", text) == _MULTIPLES


def questions(text: str) -> bool:
    """Require four questions with five options each, each longer than the one before, and nothing before them."""
    parts = [part.strip() for part in _QUESTION.split(text) if part.strip()]
    sizes = [_question(part) for part in parts]
    longer = all(before < after for (before, _), (after, _) in pairwise(sizes))
    return text.startswith("Question") and len(sizes) == 4 and longer and all(options == 5 for _, options in sizes)


def _question(part: str) -> tuple[int, int]:
    """Return the number of characters of a question, and of the options after it."""
    lines = [line.strip() for line in part.split("\n")]
    options = [bool(_OPTION.match(line)) for line in lines]
    first = options.index(True) if True in options else len(lines)
    return len(" ".join(lines[:first]).strip()), sum(options)


def african_countries(text: str) -> bool:
    """Require lines in reverse alphabetical order from Zimbabwe on, accents ignored."""
    lines = [of.without_accents(line) for line in map(of.bare, text.split("\n")) if line]
    first = next((number for number, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    countries = lines[first:]
    return len(countries) >= _COUNTRIES and countries == sorted(countries, reverse=True)


def words_reversed(text: str) -> bool:
    return "bald eagle" in " ".join(reversed(of.plain_words(text.lower())))


def letters_reversed(text: str) -> bool:
    return "elgae dlab" in text.lower()


def alphabet_story(text: str) -> bool:
    """Require 26 sentences that begin with A to Z."""
    first = [sentence.lstrip(string.punctuation + string.whitespace)[:1].lower() for sentence in of.sentences(text)]
    return first == list(string.ascii_lowercase)


def capitals(text: str) -> bool:
    """Require the capitals from north to south."""
    return [city for part in of.without_accents(text).split(",") if (city := part.strip())] == _CAPITALS.split()


def city_csv(text: str) -> bool:
    header, *rows = _table(text) or [[]]
    return header == _CITIES and len(rows) == 7 and all(len(row) == 5 for row in rows)


def special_csv(text: str) -> bool:
    """Require at least one field with a special character, in quotes."""
    rows = _table(text, keeps_quotes=True)
    whole = _has_header(text, _PRODUCTS, ",") and len(rows) == 15 and all(len(row) == 5 for row in rows[1:])
    return whole and any(_quotes_special(field) for row in rows[1:] for field in row)


def _quotes_special(field: str) -> bool:
    """Return whether the field's first line begins with a quote, and has a special character before its last quote."""
    line = field.partition("\n")[0]
    return line.startswith('"') and _SPECIAL.search(line, 1, max(1, line.rfind('"'))) is not None


def quoted_csv(text: str) -> bool:
    """Require tabs between the fields, and quotes around each."""
    rows = _table(text, delimiter="\t", keeps_quotes=True)
    whole = _has_header(text, _STUDENTS, "\t") and len(rows) == 4 and all(len(row) == 5 for row in rows)
    return whole and all(re.fullmatch(r'\s*".*"\s*', field, re.DOTALL) for row in rows for field in row)


def _table(text: str, *, delimiter: str = ",", keeps_quotes: bool = False) -> list[list[str]]:
    """Return the rows of a table; empty if the text is not a table."""
    try:
        return list(csv.reader(io.StringIO(text.replace('"', '"""') if keeps_quotes else text), delimiter=delimiter))
    except csv.Error:
        return []


def _has_header(text: str, names: list[str], delimiter: str) -> bool:
    """Return whether the header has these names, quoted or not."""
    fields = [field.strip() for field in text.partition("\n")[0].split(delimiter)]
    return [field[1:-1] if field == f'"{field[1:-1]}"' else field for field in fields] == names


def dates(text: str) -> bool:
    """Require days of Napoleon's life, with commas between them."""
    return all(_is_date(part.strip()) for part in text.split(","))


def _is_date(part: str) -> bool:
    try:
        return bool(_DATE.fullmatch(part)) and _NAPOLEON[0] <= datetime.date.fromisoformat(part).year <= _NAPOLEON[1]
    except ValueError:
        return False


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    """Require the prompt with another first word."""
    words, expected = text.split(), prompt_to_repeat.split()
    return words[:1] != expected[:1] and words[1:] == expected[1:]


def repeat_simple(text: str) -> bool:
    return text.strip().lower() == _ONLY


def repeat_span(text: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Require the prompt's words from `n_start` to `n_end`, both included, counted from 0."""
    return text.lower().split() == prompt_to_repeat.lower().split()[n_start : n_end + 1]
