"""The tree of errors is drawn as it is."""

from __future__ import annotations

import inspect
import re

from schemas import errors

ROOT = errors.SlimeEventsError


def _drawn() -> dict[str, str]:
    """Each error's parent, as the module's docstring draws it: four characters more to the right are one level."""
    parents: dict[str, str] = {}
    above = [ROOT.__name__]
    for bar, names in re.findall(r"^ {4}([│ ]*[├└])── (\w+(?: / \w+)*)", errors.__doc__ or "", re.MULTILINE):
        level = len(bar) // 4 + 1
        for name in names.split(" / "):
            parents[name] = above[level - 1]
            above[level:] = [name]
    return parents


def test_the_tree_is_drawn_as_it_is() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls is not ROOT]
    assert _drawn() == {cls.__name__: cls.__bases__[0].__name__ for cls in classes}


def test_every_error_says_when_it_is_met() -> None:
    assert all(inspect.getdoc(cls) for _, cls in inspect.getmembers(errors, inspect.isclass))
