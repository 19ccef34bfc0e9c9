"""The list of faults is one of this code, and generated faults are what they say."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.harness.mutation.areas import AREAS, ROOT
from tests.harness.mutation.fault import Fault, equivalents, listed
from tests.harness.mutation.generate import generated
from tests.harness.mutation.reach import Reach


def _can_be_made(fault: Fault, source: bytes) -> bool:
    try:
        ast.parse(changed := fault.applied(source))
    except (SyntaxError, ValueError):
        return False
    return changed != source


def test_each_listed_fault_can_still_be_made() -> None:
    faults = listed()
    sources = {file: (ROOT / file).read_bytes() for file in {fault.file for fault in faults}}
    assert [fault for fault in faults if not _can_be_made(fault, sources[fault.file])] == []
    assert [fault for fault in faults if not fault.why or not (fault.tests or fault.equivalent)] == []
    assert len({fault.id for fault in faults}) == len(faults)


def test_every_area_has_its_files_tests_and_faults() -> None:
    named = {fault.area for fault in listed()}
    assert [area.name for area in AREAS.values() if not (area.paths(ROOT) and area.test_files(ROOT))] == []
    assert set(AREAS) - named == set()
    assert [name for area in AREAS.values() for name in (*area.files, *area.tests) if not (ROOT / name).exists()] == []


def test_each_equivalent_fault_is_one_that_is_generated() -> None:
    reasons = equivalents()
    excused = {file for file, _, _ in reasons}
    reached = {fault.equivalent for file in excused for fault in generated("", file, ROOT, reasons)}
    assert set(reasons.values()) <= reached
    assert all(reasons.values())


SOURCE = '''
LIMIT_S = 3.0
def chosen(numbers: list[int], least: int = 2, *, strict: bool = True) -> int | None:
    """Not 5, and no raise."""
    if not numbers or min(numbers) < least:
        raise ValueError(f"no number over {least + 1}")
    log.info("chosen")
    numbers.sort()
    return numbers[-1]
'''


def test_generated_faults_leave_prose_and_timings_alone(tmp_path: Path) -> None:
    (tmp_path / "chosen.py").write_text(SOURCE)
    faults = list(generated("state", "chosen.py", tmp_path, {}))
    source = SOURCE.encode()
    for fault in faults:
        assert ast.dump(ast.parse(fault.applied(source))) != ast.dump(ast.parse(source))
    assert {(fault.line(source), fault.change) for fault in faults} == {
        (3, "2 to 3"),
        (3, "True to False"),
        (5, "not dropped"),
        (5, "and, or swapped"),
        (5, "min to max"),
        (5, "Lt to LtE"),
        (6, "raise dropped"),
        (8, "call dropped"),
        (9, "returns None"),
        (9, "1 to 2"),
    }
    assert len({fault.id for fault in faults}) == len(faults)


def test_a_fault_is_tried_with_the_nearest_and_quickest_tests(tmp_path: Path) -> None:
    (tmp_path / "chosen.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    for name in "abcd":
        (tmp_path / "tests" / f"test_{name}.py").write_text("from chosen import LIMIT_S" if name == "d" else "")
    reach = Reach(tmp_path, tmp_path / "kept")
    functions = {"a": ["chosen"], "b": ["other"], "c": ["<module>", "chosen"]}  # the last is the first to import it
    calls = {
        f"tests/test_{name}.py": [f"chosen.py::{function}" for function in called] for name, called in functions.items()
    } | {"tests/test_d.py": ["elsewhere.py::other"]}

    def ask(task: dict[str, object]) -> dict[str, object]:
        (file,) = task["tests"]  # type: ignore[misc]
        took = {f"{file}::slow": 2.0, f"{file}::quick": 1.0}
        tests = {name: {"calls": calls[file], "took_s": s} for name, s in took.items()}
        return {"tests": tests, "failed": [], "took_s": 3.5}

    for file in calls:
        reach.record(file, ask)
        reach.record(file, lambda task: {})  # kept
    inside, outside = (
        next(f for f in generated("state", "chosen.py", tmp_path, {}) if f.change == change)
        for change in ("min to max", "2 to 3")
    )
    source = SOURCE.encode()
    first, other, third, reads = ([f"{file}::quick", f"{file}::slow"] for file in calls)
    assert reach.tests_of(inside, source, calls) == [first, third]
    assert reach.tests_of(inside, source, [*calls][1:]) == [reads, other, third], "nothing but an import calls it"
    assert reach.tests_of(outside, source, calls) == [reads, first, other, third], (
        "a default is read when the file is imported"
    )
    assert reach.tests_of(inside, source, ["tests/test_b.py"]) == [other]
