"""Whether a pair serves what its target alone would, shown on the operator's own prompts."""
