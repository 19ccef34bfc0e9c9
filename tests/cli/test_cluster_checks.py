"""`doctor --ray-address`: what a survey of machines means. tests/cluster/test_doctor.py looks at real ones."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from slime_events.app.cli.checks import GIB, Outcome
from slime_events.app.cli.cluster_checks import cluster_checks
from slime_events.app.launch.node_survey import Survey, Surveyed
from slime_events.core.machine.node_facts import GpuMemory, NodeFacts

VERSIONS = {"python": "3.11", "torch": "2.14.1"}
GPU = GpuMemory(name="H100", free=79 * GIB, total=80 * GIB)
FACTS = NodeFacts(versions=VERSIONS, gpus=(GPU, GPU))
HOSTS = ("10.0.0.5", "10.0.0.6", "10.0.0.7")
FINE = Survey(machines=tuple(Surveyed(address=host, facts=FACTS) for host in HOSTS), backend="nccl")


def with_third(**fields: Any) -> Survey:
    """Return the survey with a fault of the third machine."""
    return replace(FINE, machines=(*FINE.machines[:2], replace(FINE.machines[2], **fields)))


def outcomes(survey: Survey) -> dict[str, Outcome]:
    return {check.name: check.outcome for check in cluster_checks(survey) if check.outcome is not Outcome.OK}


def test_a_cluster_without_faults_is_ok() -> None:
    assert outcomes(FINE) == {}
    assert outcomes(Survey(machines=FINE.machines[:1])) == {}


@pytest.mark.parametrize(
    ("survey", "name", "outcome"),
    [
        (with_third(silent="it has not answered", facts=None), "machines", Outcome.FAIL),
        (with_third(facts=replace(FACTS, versions={**VERSIONS, "torch": "2.9.0"})), "versions", Outcome.FAIL),
        (with_third(facts=replace(FACTS, versions={"python": "3.11"})), "versions", Outcome.FAIL),
        (with_third(ahead_ns=700_000_000, exact_ns=1_000_000), "clocks", Outcome.WARN),
        (with_third(ahead_ns=-90_000_000_000, exact_ns=1_000_000), "clocks", Outcome.FAIL),
        (with_third(closed={HOSTS[0]: "Connection refused"}), "network", Outcome.FAIL),
        (replace(FINE, meeting="10.0.0.7: timed out"), "collectives", Outcome.FAIL),
        (with_third(problems=("--runs-dir /runs is not shared with it",)), "shared places", Outcome.FAIL),
        (with_third(taken={8500: "Address already in use"}), "ports", Outcome.FAIL),
        (with_third(facts=replace(FACTS, gpus=(GPU, replace(GPU, free=GIB)))), "memory of GPUs", Outcome.WARN),
        (with_third(facts=replace(FACTS, gpus=(), gpu_error="no driver")), "memory of GPUs", Outcome.WARN),
    ],
)
def test_a_fault_is_one_row_that_names_the_machine(survey: Survey, name: str, outcome: Outcome) -> None:
    assert outcomes(survey) == {name: outcome}
    (failed,) = (check for check in cluster_checks(survey) if check.outcome is not Outcome.OK)
    assert HOSTS[2] in failed.detail
    assert failed.mend


def test_a_clock_that_was_read_inexactly_is_not_blamed() -> None:
    assert outcomes(with_third(ahead_ns=6_000_000_000, exact_ns=5_900_000_000)) == {}


def test_many_faults_are_counted_and_the_first_shown() -> None:
    many = tuple(Surveyed(address=f"10.0.1.{n}", facts=FACTS, taken={8500: "in use"}) for n in range(100))
    (failed,) = (check for check in cluster_checks(Survey(machines=many)) if check.outcome is not Outcome.OK)
    assert "94 more" in failed.detail
