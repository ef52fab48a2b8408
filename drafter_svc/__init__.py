"""The drafter: proposes tokens, one file per draft source."""
