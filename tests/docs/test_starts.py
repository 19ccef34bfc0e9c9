"""Test that `make docs-run` starts every run of the pages and examples, or that a list has the reason why not."""

from __future__ import annotations

from pathlib import Path

from tests.harness.docs_run.blocks import Start, all_starts, starts_of
from tests.harness.docs_run.case import Key
from tests.harness.docs_run.cases import CASES, NOT_STARTED
from tests.harness.docs_run.play import command_of
from tests.run.test_documented import KINDS

STARTED: set[Key] = {case.key for case in CASES} | {key for case in CASES for key in case.covers}


def test_every_start_of_a_page_is_started_or_has_a_reason() -> None:
    starts = all_starts()
    assert len(starts) > 100
    unknown = [str(start) for start in starts if start.key not in STARTED and not reasons(start)]
    assert not unknown, "add a case to tests/harness/docs_run/cases.py for: \n" + "\n".join(unknown)


def reasons(start: Start) -> list[str]:
    return [reason_.reason for reason_ in NOT_STARTED if reason_.holds_of(start.key)]


def test_no_case_and_no_reason_is_of_something_that_is_gone() -> None:
    keys = {start.key for start in all_starts()}
    assert {key for key in STARTED if key not in keys} == set()
    assert [reason_ for reason_ in NOT_STARTED if not any(reason_.holds_of(key) for key in keys)] == []
    assert [reason_ for reason_ in NOT_STARTED if any(reason_.holds_of(key) for key in STARTED)] == [], "it is started"
    assert all(len(reason_.reason) > 20 for reason_ in NOT_STARTED)


def test_each_case_is_one_command_that_the_page_s_text_allows() -> None:
    keys = [case.key for case in CASES]
    assert len(keys) == len(set(keys))
    starts = {start.key: start for start in all_starts()}
    for case in CASES:
        command = command_of(case, starts[case.key])
        assert "..." not in command
        assert (
            case.steps is not None
            or case.says
            or case.killed
            or any(line.lstrip().startswith("error: ") for line in starts[case.key].shown)
        ), f"nothing says how {command} ends"


def test_a_start_that_is_new_on_a_page_is_seen(tmp_path: Path, monkeypatch) -> None:
    page = tmp_path / "new.md"
    page.write_text(
        "```\n$ slime-events train --config a.toml \\\n    --run b   # said behind it\nnote: x\n```\n"
        "```toml\n[data]\n```\n```python\nprint(1)\n```\n```python\nwith start_run(s):\n    pass\n```\n"
    )
    monkeypatch.setattr("tests.harness.docs_run.blocks.ROOT", tmp_path)
    starts = list(starts_of(page))
    assert [(start.line, start.text) for start in starts] == [
        (2, "slime-events train --config a.toml --run b"), (7, "[data]"), (13, "with start_run(s):"),
    ]  # fmt: skip
    assert starts[0].shown == ("note: x",)
    assert not any(start.key in STARTED or reasons(start) for start in starts)


def test_each_way_to_train_has_one_start_in_the_suite() -> None:
    """The tests of `tests/run/test_documented.py` are those of `make test`; taking one away is noticed here."""
    assert KINDS.keys() == {
        *("supervised", "ppo", "distilling", "tinker", "agents", "a rollout function", "rollouts alone"),
    }
    assert "--debug-train-only" in KINDS["ppo"][2], "the other half of the dumps"
    for page, begin, _ in KINDS.values():
        assert [case for case in CASES if case.page == page and begin in case.text], (page, begin)
