"""Names of draft sources on the wire, in receipts and in measures."""

MODEL = "model"
PARALLEL = "parallel"
PARALLEL_TREE = "parallel-tree"
NGRAM = "ngram"
SUFFIX = "suffix"
RECYCLING = "recycling"
LOOKAHEAD = "lookahead"
LOOKUP = "lookup"
"""The orchestrator's own, where a drafter has nothing ready; the others are drafters'."""

MODELS = (MODEL, PARALLEL, PARALLEL_TREE)
TREES = (RECYCLING, f"{SUFFIX}+{RECYCLING}", f"{SUFFIX}+{RECYCLING}+{PARALLEL_TREE}")
NAMES = frozenset((*MODELS, NGRAM, SUFFIX, *TREES, LOOKAHEAD, LOOKUP))
"""What a draft may say it comes from; a chain says which of its parts it was."""
