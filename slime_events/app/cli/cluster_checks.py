"""Checks of `slime-events doctor --ray-address`: what differs between the machines of a Ray, or lies between them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from slime_events.app.cli.checks import GIB, Check, Outcome
from slime_events.app.launch.node_survey import Survey, Surveyed
from slime_events.core.machine.node_facts import NodeFacts

CLOCK_WARN_NS, CLOCK_FAIL_NS = 500_000_000, 5_000_000_000
FREE_SHARE = 0.9
"""Free share of a GPU's memory from which no other program seems to use it."""
SHOWN = 6


def cluster_checks(survey: Survey) -> list[Check]:
    """Return a row per check, and for each check that fails, the machines for which it does."""
    answering = [machine for machine in survey.machines if not machine.silent]
    facts = {machine.address: machine.facts for machine in answering if machine.facts is not None}
    return [
        _machines(survey.machines),
        _versions(facts),
        _clocks(answering),
        _network(answering),
        _meeting(survey),
        _places(answering),
        _ports(answering),
        *_gpus(facts),
    ]


def _row(name: str, wrong: Sequence[str], fine: str, mend: str, outcome: Outcome = Outcome.FAIL) -> Check:
    """Return a check: what is wrong, the first of it if it is much, or that nothing is."""
    if not wrong:
        return Check(name, Outcome.OK, fine)
    more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return Check(name, outcome, "; ".join(wrong[:SHOWN]) + more, mend)


def _machines(machines: Sequence[Surveyed]) -> Check:
    wrong = [f"{machine.address}: {machine.silent}" for machine in machines if machine.silent]
    fine = f"{len(machines)} answer: {', '.join(machine.address for machine in machines[:SHOWN])}"
    return _row(
        "machines", wrong, fine, "see `ray status`; start Ray on a lost machine again, with slime-events as here"
    )


def _versions(facts: dict[str, NodeFacts]) -> Check:
    wrong = []
    for name in sorted({name for node in facts.values() for name in node.versions}):
        of = {address: node.versions.get(name, "not installed") for address, node in facts.items()}
        common = Counter(of.values()).most_common(1)[0][0]
        others = [f"{version} on {address}" for address, version in of.items() if version != common]
        if others:
            wrong.append(f"{name} {', '.join(others[:SHOWN])}, elsewhere {common}")
    return _row("versions", wrong, "equal on all machines", "install the same requirements on all machines")


def _clocks(machines: Iterable[Surveyed]) -> Check:
    late = [machine for machine in machines if abs(machine.ahead_ns) - machine.exact_ns >= CLOCK_WARN_NS]
    wrong = [
        f"{machine.address} is {abs(machine.ahead_ns) / 1e9:.1f} s {'ahead' if machine.ahead_ns > 0 else 'behind'}"
        for machine in late
    ]
    far = any(abs(machine.ahead_ns) - machine.exact_ns >= CLOCK_FAIL_NS for machine in late)
    fine = f"equal to {CLOCK_WARN_NS / 1e9:g} s"
    mend = "set the clocks by NTP: times of events, TLS and signatures of object stores depend on them"
    return _row("clocks", wrong, fine, mend, Outcome.FAIL if far else Outcome.WARN)


def _network(machines: Iterable[Surveyed]) -> Check:
    wrong = [
        f"{machine.address} does not reach {to} ({why})" for machine in machines for to, why in machine.closed.items()
    ]
    mend = "open all ports between the machines, or start Ray with the --node-ip-address that the others reach"
    return _row("network", wrong, "each machine reaches each other one", mend)


def _meeting(survey: Survey) -> Check:
    if not survey.backend:
        return Check("collectives", Outcome.OK, "one machine")
    wrong = [survey.meeting] if survey.meeting else []
    mend = "set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME to the network between the machines, see NCCL_DEBUG=INFO"
    return _row("collectives", wrong, f"all machines added up a tensor by {survey.backend}", mend)


def _places(machines: Iterable[Surveyed]) -> Check:
    wrong = [f"{machine.address}: {problem}" for machine in machines for problem in machine.problems]
    return _row("shared places", wrong, "all machines see the same", "see docs/deploying.md, several machines")


def _ports(machines: Iterable[Surveyed]) -> Check:
    wrong = [f"{port} on {machine.address} ({why})" for machine in machines for port, why in machine.taken.items()]
    return _row("ports", wrong, "free on all machines", "stop the listener, or choose another port")


def _gpus(facts: dict[str, NodeFacts]) -> list[Check]:
    """Return nothing for machines without GPUs."""
    having = {address: node for address, node in facts.items() if node.gpus or node.gpu_error}
    if not having:
        return []
    wrong = [f"{address}: {node.gpu_error}" for address, node in having.items() if node.gpu_error]
    wrong += [
        f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free on GPU {index} of {address}"
        for address, node in having.items()
        for index, gpu in enumerate(node.gpus)
        if gpu.free < FREE_SHARE * gpu.total
    ]
    fine = f"{sum(len(node.gpus) for node in having.values())} GPUs, free"
    return [_row("memory of GPUs", wrong, fine, "end the programs that nvidia-smi lists there", Outcome.WARN)]
