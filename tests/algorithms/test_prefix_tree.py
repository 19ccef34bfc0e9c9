"""A tree holds every sequence whole, each shared prefix once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.algorithms.prefix_tree import Branch, Size, Tokens, branches, common_prefix, families, lay_out

IDS = st.sampled_from([0, 1, 255, 256, 70_000])
"""Few, so that sequences share; of one byte and of several."""


@st.composite
def grown(draw: st.DrawFn) -> list[Tokens]:
    """Sequences, each of which begins as an earlier one for a while."""
    grown_sequences: list[list[int]] = []
    for _ in range(draw(st.integers(1, 9))):
        before = draw(st.sampled_from(grown_sequences)) if grown_sequences else []
        kept = draw(st.integers(0, len(before)))
        tail = draw(st.lists(IDS, min_size=0 if kept else 1, max_size=6))
        grown_sequences.append([*before[:kept], *tail])
    return [np.array(tokens, np.int32) for tokens in grown_sequences]


def always(shared: int, length: int) -> bool:
    return True


def own_tokens(lengths: list[int]) -> Size:
    return lambda branch: lengths[branch.index] - branch.shared


@given(grown())
def test_every_sequence_is_read_back(sequences: list[Tokens]) -> None:
    tree = lay_out(sequences, branches(sequences, always))
    for sequence, path, shared in zip(sequences, tree.paths, tree.shared, strict=True):
        assert (tree.tokens[path] == sequence).all()
        assert (tree.positions[path] == np.arange(len(sequence))).all()
        assert (np.diff(path[shared:]) == 1).all(), "its own tokens stand side by side"
    assert sorted(place for path, shared in zip(tree.paths, tree.shared, strict=True) for place in path[shared:]) == [
        *range(len(tree.tokens))
    ]


@given(grown())
def test_a_prefix_stands_once(sequences: list[Tokens]) -> None:
    tree = lay_out(sequences, branches(sequences, always))
    prefixes = {tuple(sequence[: end + 1]) for sequence in sequences for end in range(len(sequence))}
    assert len(tree.tokens) == len(prefixes)
    above: dict[int, int] = {}
    for path in tree.paths:
        for parent, place in zip([-1, *path[:-1]], path, strict=True):
            assert above.setdefault(place, parent) == parent, "a token has one token before it in all sequences"


@given(grown(), st.integers(0, 8))
def test_only_what_pays_is_shared(sequences: list[Tokens], least: int) -> None:
    branched = branches(sequences, lambda shared, length: shared >= least)
    assert all(branch.shared == 0 or branch.shared >= least for branch in branched)
    tree = lay_out(sequences, branched)
    assert len(tree.tokens) == sum(map(len, sequences)) - sum(branch.shared for branch in branched)
    assert all((tree.tokens[path] == sequence).all() for path, sequence in zip(tree.paths, sequences, strict=True))


@given(grown())
def test_what_shares_nothing_stays_end_to_end(sequences: list[Tokens]) -> None:
    tree = lay_out(sequences, branches(sequences, lambda shared, length: False))
    assert (tree.tokens == np.concatenate(sequences)).all()
    assert tree.shared == (0,) * len(sequences)


@given(grown(), st.integers(1, 30), st.integers(1, 10))
def test_families_keep_the_limit_and_lose_nobody(sequences: list[Tokens], limit: int, least: int) -> None:
    lengths = [len(sequence) for sequence in sequences]
    size = own_tokens(lengths)
    grouped = families(branches(sequences, always), size, limit, least=least)
    assert len(grouped) >= min(least, len(sequences))
    assert sorted(branch.index for family in grouped for branch in family) == list(range(len(sequences)))
    firsts = [min(branch.index for branch in family) for family in grouped]
    assert firsts == sorted(firsts)
    for family in grouped:
        assert family[0].shared == 0
        assert all(branch.shared for branch in family[1:])
        tokens = sum(map(size, family))
        assert tokens <= max(limit, lengths[family[0].index])
        members = [branch.index for branch in family]
        place = {index: number for number, index in enumerate(members)}
        alone = lay_out([sequences[index] for index in members], [Branch(place[b.index], b.shared) for b in family])
        assert len(alone.tokens) == tokens
        for index, path in zip(members, alone.paths, strict=True):
            assert (alone.tokens[path] == sequences[index]).all()


@pytest.mark.parametrize(("limit", "count"), [(6, 2), (7, 1)])
def test_what_just_fits_is_taken(limit: int, count: int) -> None:
    assert len(families([Branch(0, 0), Branch(1, 3)], own_tokens([5, 5]), limit)) == count


@pytest.mark.parametrize(
    ("first", "other", "count"), [("", "ab", 0), ("ab", "ab", 2), ("abc", "abd", 2), ("b", "a", 0)]
)
def test_the_common_prefix(first: str, other: str, count: int) -> None:
    assert common_prefix(*(np.array([*map(ord, text)], np.int32) for text in (first, other))) == count


def test_nothing_is_a_tree_too() -> None:
    assert branches([], always) == []
    assert families([], own_tokens([]), 10) == []
