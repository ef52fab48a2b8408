"""Names of draft sources on the wire, in receipts and in measures."""

MODEL = "model"
PARALLEL = "parallel"
PARALLEL_TREE = "parallel-tree"
NGRAM = "ngram"
SUFFIX = "suffix"
RECYCLING = "recycling"
LOOKAHEAD = "lookahead"
LOOKUP = "lookup"
"""The orchestrator's own: where a drafter has nothing ready, and where it is preferred to all of
them. The others are drafters'."""

EAGLE3 = "eagle3"
MEDUSA = "medusa"
REDRAFTER = "redrafter"
TREE = "-tree"
"""Behind the name of a model or head that proposes trees."""

MODELS = (MODEL, PARALLEL, PARALLEL_TREE)
HEADS = tuple(f"{head}{kind}" for head in (EAGLE3, MEDUSA, REDRAFTER) for kind in ("", TREE))
COPIES = f"{SUFFIX}+{RECYCLING}"
TREES = (
    RECYCLING,
    COPIES,
    *(f"{COPIES}+{each}" for each in (*MODELS, *HEADS) if each.endswith(TREE)),
)
NAMES = frozenset((*MODELS, *HEADS, NGRAM, SUFFIX, *TREES, LOOKAHEAD, LOOKUP))
"""What a draft may say it comes from; a chain says which of its parts it was."""
