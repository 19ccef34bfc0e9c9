"""The plans of slime's launches, and the page that shows them."""

from __future__ import annotations

import re

import pytest

from slime_events.core.planning.plan import Resource, Verdict
from slime_events.core.planning.smallest import smallest_fits
from tests.docs.pages import DOCS
from tests.seeds import planning_page
from tests.seeds.exceptions import LAUNCHES
from tests.seeds.planned import GLM, Planned, plan_words, planned_launches, with_share, words_of

OPD = "examples/on_policy_distillation/run-qwen3-8B-opd"


@pytest.fixture(scope="module")
def planned() -> dict[str, Planned]:
    return {each.name: each for each in planned_launches()}


def test_the_page_is_up_to_date(planned: dict[str, Planned], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning_page, "planned_launches", planned.values)
    page = (DOCS / "planning.md").read_text(encoding="utf-8")
    assert planning_page.document(page) == page, "python -m tests.seeds.planning_page docs/planning.md"


def test_each_launch_fits_the_gpus_that_it_names(planned: dict[str, Planned]) -> None:
    """On several machines there are no turns yet: some engines there need the smaller share that the plan names."""
    too_small = {name for name, each in planned.items() if each.plan.verdict is Verdict.TOO_SMALL}
    refused = {"scripts/run-glm4.7-30B-A3B", "examples/delta_weight_sync/run-glm4.7-30B-A3B-delta"}
    assert refused == too_small & LAUNCHES.keys()
    side_by_side = too_small - refused
    assert side_by_side == {"scripts/run-deepseek-r1", GLM, f"{GLM}, 16 nodes"}
    for name in side_by_side:
        each = planned[name]
        assert each.settings.trainer.actor_num_nodes > 1
        share = re.fullmatch(r"--sglang-mem-fraction-static ([\d.]+)", _first(each))
        assert share is not None
        assert with_share(each, float(share[1])).verdict is Verdict.FITS
    assert len(planned) == 27
    for name, each in planned.items():
        assert each.plan.nodes is not None, name
        assert sum(node.ranks for node in each.plan.nodes) == each.plan.needs.ranks


def test_the_launch_of_two_nodes_fits_as_the_one_of_one_does_not() -> None:
    words = words_of()["scripts/run-glm4.7-30B-A3B"]
    assert plan_words("one", words).plan.shortages[0].resource is Resource.LAYOUT
    two = plan_words("two", [*words, "--actor-num-nodes", "2"])
    assert two.plan.shortages[0].resource is Resource.SHARED_MEMORY, "its layout fits, side by side"
    assert _first(two).startswith("--sglang-mem-fraction-static ")


def test_eight_colocated_gpus_fit_side_by_side_with_the_share_that_the_plan_names() -> None:
    name = "scripts/run-qwen3-30B-A3B"
    words = [*words_of()[name], "--no-offload-train", "--no-offload-rollout", "--sglang-mem-fraction-static", "0.7"]
    each = plan_words(name, words, gib=80)
    assert each.plan.verdict is Verdict.TOO_SMALL
    share = re.search(r"--sglang-mem-fraction-static ([\d.]+)", _first(each))
    assert share is not None
    assert with_share(each, float(share[1])).verdict is Verdict.FITS
    assert with_share(each, float(share[1]) + 0.01).verdict is Verdict.TOO_SMALL


def _first(each: Planned) -> str:
    return smallest_fits(each.plan, each.settings, each.arithmetic)[0].change


@pytest.mark.parametrize("nodes", [1, 2, 15])
def test_too_few_machines_are_refused_with_the_number_that_fits(nodes: int) -> None:
    words = words_of()[f"{GLM}, 16 nodes"]
    each = plan_words("few", words, nodes=nodes, gib=80)
    (shortage,) = (shortage for shortage in each.plan.shortages if shortage.resource is Resource.GPUS)
    assert (shortage.needed, shortage.available) == (128, 8 * nodes)
    assert _first(each).startswith("16 machine")


def test_a_change_that_a_plan_names_fits() -> None:
    """Each change of flags is planned again, as flags of the launch."""
    launches = words_of()
    cases = {"tests/test_gspo": 26.0, "scripts/run-qwen3-4B-base-sft": 34.0, OPD: 60.0}
    tried = 0
    for name, gib in cases.items():
        each = plan_words(name, launches[name], gib=gib)
        assert each.plan.verdict is Verdict.TOO_SMALL
        for remedy in smallest_fits(each.plan, each.settings, each.arithmetic):
            if remedy.change.startswith("--"):
                again = plan_words(name, [*launches[name], *remedy.change.split()], gib=gib)
                assert (again.plan.verdict, again.plan.needs.total) == (remedy.verdict, remedy.gpus), remedy
                tried += 1
    assert tried > 3
