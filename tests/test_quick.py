"""`make quick`: the tests that a change reaches, the nearest first."""

from __future__ import annotations

from pathlib import PurePosixPath

import grimp
import pytest

from tools.quick import ROOT, batches, is_test, module_name, nearest_tests


@pytest.fixture
def graph() -> grimp.ImportGraph:
    """low <- middle <- top; each has a test. A page has one too."""
    graph = grimp.ImportGraph()
    for importer, imported in (
        ("storage.middle", "storage.low"),
        ("actors.top", "storage.middle"),
        ("tests.storage.test_low", "storage.low"),
        ("tests.storage.helper", "storage.low"),
        ("tests.storage.test_helped", "tests.storage.helper"),
        ("tests.actors.test_top", "actors.top"),
    ):
        graph.add_import(importer=importer, imported=imported)
    graph.add_module("tests.docs.test_links")
    graph.add_module("tests.harness.mutation.test_mutation")
    return graph


def test_the_nearest_tests_come_first(graph: grimp.ImportGraph) -> None:
    assert list(batches(nearest_tests(["storage/low.py"], graph), 9)) == [
        ["tests/storage/test_low.py"],
        ["tests/storage/test_helped.py"],
        ["tests/actors/test_top.py"],
    ]


def test_a_changed_test_is_its_own_nearest(graph: grimp.ImportGraph) -> None:
    changed = ["tests/actors/test_top.py", "storage/low.py"]
    assert next(batches(nearest_tests(changed, graph), 9)) == ["tests/actors/test_top.py"]


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("docs/gpu.md", "tests/docs/test_links.py"),
        ("tests/harness/mutation/faults/x.toml", "tests/harness/mutation/test_mutation.py"),
    ],
)
def test_a_file_that_nothing_imports_has_the_tests_beside_it(path: str, test: str, graph: grimp.ImportGraph) -> None:
    assert list(batches(nearest_tests([path], graph), 9)) == [[test]]


def test_a_file_without_tests_has_none(graph: grimp.ImportGraph) -> None:
    assert list(batches(nearest_tests(["Makefile", "tests/conftest.py", "no/such.py"], graph), 9)) == []


def test_batches_are_of_the_size_and_have_each_file_once() -> None:
    assert list(batches([["a", "b", "c"], ["b", "d"]], 2)) == [["a", "b"], ["c"], ["d"]]


def test_modules_are_named_as_they_are_imported() -> None:
    assert module_name(PurePosixPath("storage/__init__.py")) == "storage"
    assert module_name(PurePosixPath("tests/test_quick.py")) == __name__
    assert is_test(__name__)
    assert not is_test("tests.conftest")
    assert (ROOT / "Makefile").is_file()
