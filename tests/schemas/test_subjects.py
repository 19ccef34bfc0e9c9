"""`heads_of`: filters of whole types are looked up, and want what matching one by one wants."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from schemas.subjects import about, every_event, heads_of, matches, of_type
from storage.log import is_wanted

TYPES = ("rollout.completed", "rollout.requested", "reward.assigned")
TOKENS = st.sampled_from(["slime", "r", "rollout", "completed", "reward", "g-s0", "*", ">", ""])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=6).map(".".join)


def test_only_filters_of_whole_types_have_heads() -> None:
    assert heads_of(tuple(of_type("r", type_) for type_ in TYPES)) == {f"slime.r.{type_}" for type_ in TYPES}
    assert heads_of((of_type("r", TYPES[0]), about("r", "reward", "g-s0"))) is None
    assert heads_of((every_event("r"),)) is None


@given(filters=st.lists(SUBJECTS, min_size=1, max_size=3).map(tuple), subject=SUBJECTS)
def test_a_subject_is_wanted_where_a_filter_matches_it(filters: tuple[str, ...], subject: str) -> None:
    assert is_wanted(subject, filters) == any(matches(filter_, subject) for filter_ in filters)


def test_what_has_one_token_is_no_type() -> None:
    assert heads_of(("*",)) is None
    assert not is_wanted(".x", "*")


def test_subjects_are_made_in_one_place() -> None:
    """Every other file asks `schemas.subjects`, so the grammar of subjects is written once."""
    root = Path(__file__).parents[2]
    packages = ("schemas", "storage", "slime_events", "actors", "serve_apps")
    files = [file for package in packages for file in (root / package).rglob("*.py") if file.name != "subjects.py"]
    assert [file for file in files if re.search(r"slime\.\{", file.read_text(encoding="utf-8"))] == []
