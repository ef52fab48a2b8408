"""Cuts drafts to what the constraint of a sequence allows."""

from dataclasses import replace

from drafter_svc.source import Block, Wanted
from outrider.sampling import Mode


def legal_block(block: Block, wanted: Wanted, mode: Mode) -> Block:
    """Return a block with the part of its draft that may stand behind its path.

    What was drawn in RATIO stays as it is: to drop a token for what it is would change the law
    (contract 18). It was drawn with the target's masks, so it is legal as far as they reach. A
    point mass may be cut there too. Whether a node is legal is a function of the committed ids and
    of the proposed ones before it; the noise that decides about it has no part in that. And what is
    dropped had probability 0, so it would have been rejected and the token drawn from all of the
    target's distribution, as it is without the draft.
    """
    constrained, draft = wanted.state.constrained, block.draft
    if constrained is None or not draft or (mode is Mode.RATIO and draft.distributions):
        return block
    legal = constrained.legal(block.path, draft.token_ids, draft.parents)
    return replace(block, draft=draft.legal_part(legal))
