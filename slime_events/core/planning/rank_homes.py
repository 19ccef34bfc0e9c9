"""`rank_homes`: machines of a trainer's ranks on CPUs, for which Ray counts nothing."""

from collections.abc import Sequence


def rank_homes(ranks: int, nodes: Sequence[str]) -> list[str]:
    """Return the node of each rank: consecutive ranks together, spread as evenly as possible, rank 0 on the first node.

    Nodes at the end stay empty if there are more nodes than ranks.
    """
    used = min(ranks, len(nodes))
    return [nodes[rank * used // ranks] for rank in range(ranks)]
