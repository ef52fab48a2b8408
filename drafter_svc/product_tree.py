"""A tree out of what a parallel draft model deems likely at each place by itself.

Paper: as for Medusa's heads, Cai et al. 2024, arXiv:2401.10774; the nodes are the likeliest ones,
as in EAGLE-2, Li et al. 2024, arXiv:2406.16858.
"""

import heapq
from collections.abc import Sequence

from outrider.tree import GrowingTree

Candidates = Sequence[tuple[int, float]]
"""Ids and how likely each is, likeliest first."""


def product_tree(places: Sequence[Candidates], num_nodes: int) -> GrowingTree:
    """Return the ``num_nodes`` likeliest nodes, a node as likely as its way from the root."""
    tree = GrowingTree()
    # Likelihood, order, place, rank at that place, parent, likelihood of the parent.
    heap: list[tuple[float, int, int, int, int, float]] = []
    order = 0

    def offer(place: int, rank: int, parent: int, above: float) -> None:
        nonlocal order
        if place < len(places) and rank < len(places[place]):
            likelihood = above * places[place][rank][1]
            heapq.heappush(heap, (-likelihood, order, place, rank, parent, above))
            order += 1

    offer(0, 0, -1, 1.0)
    while heap and len(tree) < num_nodes:
        negative, _, place, rank, parent, above = heapq.heappop(heap)
        node = tree.add(places[place][rank][0], parent, -negative)
        offer(place, rank + 1, parent, above)
        offer(place + 1, 0, node, -negative)
    return tree
