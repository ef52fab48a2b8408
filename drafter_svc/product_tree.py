"""A tree out of what a parallel draft model deems likely at each place by itself.

Paper: as for Medusa's heads, Cai et al. 2024, arXiv:2401.10774; the nodes are the likeliest ones,
as in EAGLE-2, Li et al. 2024, arXiv:2406.16858.
"""

import heapq
from collections.abc import Sequence

import numpy as np
import torch

from outrider import noise, wire
from outrider.noise import Stream
from outrider.proposal import Place, Proposal
from outrider.sampling import Mode
from outrider.tree import GrowingTree

SHARPNESS = 2.0  # how much a lead in noised log probability says, in COUPLED

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


def candidates(proposal: Proposal, place: Place, mode: Mode) -> Candidates:
    """Return what the target may say at a place.

    In COUPLED the same noise makes some ids likelier than their probability says.
    Raises: ValueError if the proposal lists no ids.
    """
    if proposal.distribution is None:
        raise ValueError("a tree is made of listed ids")
    ids, counts = wire.unpack(*proposal.distribution)
    shares = counts / wire.TOTAL_COUNT
    if mode is Mode.COUPLED:
        key = noise.key_tensor([place.key], device=torch.device("cpu"))
        noised = noise.gumbel(key, torch.from_numpy(ids), place.position, 0, Stream.TOKEN).numpy()
        scores = SHARPNESS * (np.log(shares) + noised)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    return [(int(ids[i]), float(shares[i])) for i in order]
